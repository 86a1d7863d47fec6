"""What is shown of a stream while it runs."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.live import Live

from fedspan.cli import stream_view
from fedspan.cli.stream_rows import Columns
from fedspan.cli.stream_site import SiteStream
from fedspan.cli.stream_view import View, figures_of, stopping
from fedspan.stream_file import load_stream


@pytest.fixture
def site(tmp_path: Path) -> SiteStream:
    rows = np.random.default_rng(0).standard_normal((90, 3)) * [3, 2, 1]
    (tmp_path / "turin.csv").write_text("a,b,c\n" + "".join(",".join(map(repr, row)) + "\n" for row in rows.tolist()))
    text = '[sites]\nturin = "turin.csv"\n[solve]\nestimator = "streaming"\nn_components = 2\n[solve.settings]\n'
    (tmp_path / "study.toml").write_text(text + "block_size = 20\nwindow = 2\n")
    study = load_stream(tmp_path / "study.toml")
    return SiteStream("turin", study, Columns(), tmp_path, print, resume=False)


def test_figures_of_a_site(site: SiteStream) -> None:
    assert figures_of(site) == {
        "rows": 0, "rank": None, "captured": None, "drift": None, "drift_loss": None, "read": 0, "left_out": 0,
        "refused": 0, "skipped": 0,
    }  # fmt: skip
    assert site.step()
    assert not site.step()
    full, folded = figures_of(site), figures_of(site, with_held=False)
    assert (full["rows"], folded["rows"], full["rank"]) == (90, 80, 2)
    assert 0.8 < folded["captured"] < 1
    assert 0 < full["drift"] <= 1


def test_a_terminal_gets_a_live_line(
    site: SiteStream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stream_view, "_REFRESH", 0.0)
    file = io.StringIO()
    with Live(console=Console(file=file, force_terminal=True, width=100), auto_refresh=False) as live:
        view = View(live)
        view.begin([site])
        view.tick([site], None)
        site.step()
        view.tick([site], None)
        view.published(site)
    lines = [line for line in file.getvalue().splitlines() if "turin" in line]
    assert len(lines) > 1
    assert "90" not in lines[0]
    assert "90" in lines[-1]
    assert "%" in lines[-1]
    assert capsys.readouterr().err == ""


def test_elsewhere_a_line_is_written_when_a_site_publishes(
    site: SiteStream, capsys: pytest.CaptureFixture[str]
) -> None:
    view = View(None)
    view.begin([site])
    site.step()
    view.tick([site], None)
    view.published(site)
    err = capsys.readouterr().err
    assert err.startswith("turin: 90 rows, ")
    assert err.count("\n") == 1
    assert ", rank 2, captured " in err


def test_the_rate_is_that_of_the_last_second_or_more(
    site: SiteStream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(stream_view.time, "monotonic", lambda: now[0])
    view, told = View(None), []
    view.begin([site])
    site.step()
    for seconds, rows in ((0.5, 0), (0.25, 60), (1.0, 0), (1.5, 300), (3.0, 0)):
        now[0] += seconds
        site.read += rows
        view.published(site)
        told.append(capsys.readouterr().err.split(", ")[1])
    assert told == ["180 rows/s", "180 rows/s", "48 rows/s", "200 rows/s", "0 rows/s"]


def test_ctrl_c_is_asked_for_and_the_second_one_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stopping() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.wait(10)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
