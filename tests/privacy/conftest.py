"""Fixtures of the privacy tests."""

from __future__ import annotations

import pytest

from fedspan.privacy.noise import Stream


@pytest.fixture
def draws(monkeypatch):
    """Counts how often random bits are drawn."""
    counted, plain = [], Stream.bits

    def bits(self, *args):
        counted.append(args)
        return plain(self, *args)

    monkeypatch.setattr(Stream, "bits", bits)
    return counted
