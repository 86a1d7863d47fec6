"""A site's secret: nobody else's to know, the same for as long as the run lasts, and then gone."""

from __future__ import annotations

import pytest

from fedspan.errors import FileError
from fedspan.privacy.secret import KEY, Secret


@pytest.fixture(params=["file", "memory"])
def secret(request, tmp_path):
    return Secret(tmp_path / "a" / KEY if request.param == "file" else None)


def test_a_tag_depends_on_all_that_it_is_about(secret):
    about = [("run", "a", 1), ("run", "a", 2), ("run", "b", 1), ("run",), ("run", "a", [1]), ()]
    assert len({secret.tag(*parts) for parts in about}) == len(about)
    assert secret.tag("run", "a", 1) == secret.tag("run", "a", 1)
    assert len(secret.tag()) == 32


def test_no_two_secrets_are_the_same(tmp_path):
    secrets = [Secret(), Secret(), Secret(tmp_path / "a" / KEY), Secret(tmp_path / "b" / KEY)]
    assert len({secret.tag("x") for secret in secrets}) == 4


def test_a_secret_in_a_file_survives_a_kill_and_is_its_owners_alone(tmp_path):
    path = tmp_path / "a" / KEY
    tag = Secret(path).tag("x")
    assert Secret(path).tag("x") == tag
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == [KEY]


def test_a_secret_that_is_destroyed_is_nowhere(secret, tmp_path):
    before = secret.tag("x")
    secret.destroy()
    assert not list(tmp_path.rglob(KEY))
    assert secret.tag("x") != before  # another one: nothing of the first is kept in memory either


def test_a_secret_cut_short_is_an_error(tmp_path):
    (tmp_path / KEY).write_bytes(bytes(31))
    with pytest.raises(FileError, match="32 bytes"):
        Secret(tmp_path / KEY).tag("x")
