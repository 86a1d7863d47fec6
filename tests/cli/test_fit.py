"""``fedspan fit``: what it writes, what it refuses, and going on after an interruption."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedspan.data.text
from fedspan import FederatedPCA, FederatedTruncatedSVD
from fedspan.cli import fit
from fedspan.errors import DataError, SiteError
from fedspan.layers import RoundRecord
from fedspan.model_file import read_model
from fedspan.privacy import GaussianPrivacy
from fedspan.privacy.accountant import mu_of
from fedspan.privacy.ledger import Ledger
from fedspan.privacy.policy import SitePolicy
from fedspan.privacy.releases import Releases
from fedspan.privacy.transcript import Transcript
from fedspan.rounds import Round, Site
from fedspan.solvers.covariance import gram
from tests.cli.conftest import COLUMNS, Federation, invoke, python

SLOW = "[solve.settings]\nrounds = 40\ntol = 0\n[run]\nseed = 3\n"
PRIVATE = "[privacy]\nepsilon = 1.0\ndelta = 1e-6\nrow_norm = 10.0\n"

STOP_AT_ROUND_12 = """
import os, signal, sys
from fedspan.cli import fit, main

real, signal_name = fit.run, sys.argv.pop(1)

def run(*arguments, watchers=(), **more):
    def stop(record, estimate):
        if record.round == 12:
            os.kill(os.getpid(), getattr(signal, signal_name))
    return real(*arguments, watchers=[*watchers, stop], **more)

fit.run = run
main()
"""


def arrays(folder: Path) -> dict[str, np.ndarray]:
    return read_model(folder / "model.fedspan")[1]


def assert_same_model(one: Path, other: Path) -> None:
    first, second = arrays(one), arrays(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_a_fit_writes_a_whole_run_folder_and_a_summary_for_people(federation: Federation) -> None:
    result = invoke("fit", federation.study)
    assert result.exit_code == 0
    run = federation.run_folder
    assert {p.name for p in run.iterdir()} == {
        "study.toml", "terms.json", "rounds.jsonl", "rounds", "sites", "model.fedspan", "summary.json",
    }  # fmt: skip
    assert (run / "study.toml").read_bytes() == federation.study.read_bytes()
    for text in ("krylov; converged", "125 rows of 6 features at 3 sites", "2 components", str(run)):
        assert text in result.stdout
    assert "data.describe" in result.stderr  # plain lines where there is no terminal


def test_the_model_is_the_estimators(federation: Federation) -> None:
    invoke("fit", federation.study)
    model = FederatedPCA.load(federation.run_folder / "model.fedspan")
    direct = FederatedPCA(2).fit({site: federation.file(site) for site in federation.rows})
    np.testing.assert_array_equal(model.components_, direct.components_)
    np.testing.assert_array_equal(model.explained_variance_, direct.explained_variance_)
    assert list(model.feature_names_in_) == COLUMNS


def test_json_is_the_summary_and_nothing_else_is_on_stdout(federation: Federation) -> None:
    summary = json.loads(invoke("fit", federation.study, "--json").stdout)
    kept = json.loads((federation.run_folder / "summary.json").read_text())
    assert summary == {
        **kept, "folder": str(federation.run_folder), "model": str(federation.run_folder / "model.fedspan")
    }  # fmt: skip
    assert summary["rows"] == {"berlin": 40, "lyon": 25, "turin": 60}
    assert summary["n_components"] == len(summary["explained_variance"]) == 2


def test_auto_says_what_it_took_and_filled_gaps_are_told(federation: Federation) -> None:
    rows = federation.rows["lyon"].copy()
    rows[3, 1] = rows[4, 2] = np.nan
    federation.write_site("lyon", rows)
    federation.write_study('[data]\nmissing = "mean"\n', solver="auto")
    result = invoke("fit", federation.study)
    assert "chosen by auto" in result.stdout
    assert "lyon 1.3%" in result.stdout


def test_a_fraction_of_the_variance_chooses_the_rank(federation: Federation) -> None:
    federation.write_study(k=0.9)
    summary = json.loads(invoke("fit", federation.study, "--json").stdout)
    assert sum(summary["explained_variance_ratio"]) >= 0.9 > sum(summary["explained_variance_ratio"][:-1])


def test_a_truncated_svd_is_fitted_too(federation: Federation) -> None:
    federation.study.write_text(federation.study.read_text() + 'estimator = "svd"\n')
    invoke("fit", federation.study)
    model = FederatedTruncatedSVD.load(federation.run_folder / "model.fedspan")
    pooled = np.vstack([federation.rows[site] for site in sorted(federation.rows)])
    np.testing.assert_allclose(model.singular_values_, np.linalg.svd(pooled, compute_uv=False)[:2])


def test_a_second_fit_gets_a_number(federation: Federation) -> None:
    for folder in ("hospitals", "hospitals-2", "hospitals-3"):
        assert json.loads(invoke("fit", federation.study, "--json").stdout)["folder"].endswith(folder)


def test_the_folder_can_be_named(federation: Federation) -> None:
    invoke("fit", federation.study, "--folder", federation.folder / "here")
    assert (federation.folder / "here" / "model.fedspan").exists()
    assert not federation.run_folder.exists()


@pytest.mark.parametrize("more", ["", PRIVATE], ids=["plain", "private"])
def test_a_folder_that_is_named_is_used_as_named_and_never_numbered(federation: Federation, more: str) -> None:
    """Was a fault once: a folder that was there became here-2, past the ledger that had been linked into it."""
    here = federation.folder / "here"
    (here / "sites" / "berlin").mkdir(parents=True)
    (here / "notes.txt").write_text("mine")
    federation.write_study(more, solver="covariance")
    assert json.loads(invoke("fit", federation.study, "--folder", here, "--json").stdout)["folder"] == str(here)
    again = invoke("fit", federation.study, "--folder", here)
    assert again.exit_code == 6
    assert f"{here} holds a run already; name another --folder" in again.stderr
    resumed = invoke("fit", federation.study, "--folder", here, "--resume")
    assert resumed.exit_code == 6
    assert f"{here} holds no unfinished run" in resumed.stderr
    assert not list(federation.folder.glob("here-*"))


def test_a_ledger_that_was_linked_into_a_named_folder_is_charged(federation: Federation) -> None:
    federation.write_study(PRIVATE, solver="covariance")
    shared = federation.folder / "berlin.sqlite"
    Ledger(shared, budget=1.5 * mu_of(1.0, 1e-6) ** 2).close()
    codes = []
    for name in ("first", "second"):
        home = federation.folder / name / "sites" / "berlin"
        home.mkdir(parents=True)
        (home / "ledger.sqlite").symlink_to(shared)
        codes.append(invoke("fit", federation.study, "--folder", federation.folder / name).exit_code)
    assert codes == [0, 5]  # what is left is not enough for a second run
    with Ledger(shared) as ledger:
        assert len({charge.run for charge in ledger.charges()}) == 2


def test_ledgers_in_the_default_folder_are_not_passed_over(federation: Federation) -> None:
    federation.write_study(PRIVATE, solver="covariance")
    home = federation.run_folder / "sites" / "berlin"
    home.mkdir(parents=True)
    Ledger(home / "ledger.sqlite").close()
    result = invoke("fit", federation.study)
    assert result.exit_code == 3
    assert f"name it with --folder {federation.run_folder}" in result.stderr
    assert invoke("fit", federation.study, "--folder", federation.run_folder).exit_code == 0
    with Ledger(home / "ledger.sqlite") as ledger:
        assert ledger.charges()
    assert invoke("fit", federation.study).exit_code == 0  # now that it holds a run, the next one has a number
    assert federation.run_folder.with_name("hospitals-2").exists()


def test_a_file_is_no_folder_to_run_in(federation: Federation) -> None:
    result = invoke("fit", federation.study, "--folder", federation.study)
    assert result.exit_code == 3
    assert f"--folder {federation.study} is a file" in result.stderr
    assert federation.study.read_text().startswith("name")


def test_another_study_in_a_named_folder_is_not_overwritten(federation: Federation) -> None:
    here = federation.folder / "here"
    here.mkdir()
    (here / "study.toml").write_text("# another")
    result = invoke("fit", federation.study, "--folder", here)
    assert result.exit_code == 3
    assert "would overwrite it; name another --folder" in result.stderr
    assert [p.read_text() for p in here.iterdir()] == ["# another"]
    (here / "study.toml").write_bytes(federation.study.read_bytes())  # the same one may stay
    assert invoke("fit", federation.study, "--folder", here).exit_code == 0


def test_what_was_spent_names_the_runs_ledger_and_one_is_not_called_many(federation: Federation) -> None:
    federation.write_study(PRIVATE, solver="covariance", k=1)
    printed = invoke("fit", federation.study).stdout
    assert f"epsilon 1 of 1, see {federation.run_folder / 'ledger.sqlite'}" in printed
    assert "1 component with" in printed


def test_a_run_without_a_guarantee_says_so_and_is_valid_json(federation: Federation) -> None:
    """Was a fault once: FedPower as published "spent epsilon 1 of 1"."""
    more = 'neighbours = "entry"\nn_public = true\ncalibration = "published"\n[data]\ncenter = false\n'
    federation.write_study(f"[privacy]\nepsilon = 1.0\ndelta = 1e-6\n{more}", solver="fedpower")
    printed = invoke("fit", federation.study).stdout
    assert "privacy   No guarantee is established" in printed
    assert "spent     no epsilon can be told" in printed

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    kept = json.loads((federation.run_folder / "summary.json").read_text(), parse_constant=refuse)
    assert kept["privacy"]["spent_epsilon"] is None
    model = FederatedPCA.load(federation.run_folder / "model.fedspan")
    assert model.privacy_spent_["spent_epsilon"] is None


def test_a_transcript_without_noise_is_warned_about_as_such(federation: Federation) -> None:
    federation.write_study(f'{PRIVATE}trust = "central"\n[run]\nrecord = "transcript"\n', solver="covariance")
    assert "it keeps them WITHOUT noise" in invoke("fit", federation.study).stderr
    federation.write_study(f'{PRIVATE}[run]\nrecord = "transcript"\n', solver="covariance")
    assert "WITHOUT" not in invoke("fit", federation.study).stderr


def test_a_transcript_is_kept_where_the_study_asks_and_warned_about(federation: Federation) -> None:
    federation.write_study('[run]\nrecord = "transcript"\n')
    result = invoke("fit", federation.study)
    assert result.exit_code == 0
    (warning,) = [line for line in result.stderr.splitlines() if "arning" in line]
    assert warning.startswith("Warning: the transcript keeps each site's releases by name; protect the run folder")
    read = Transcript.read(federation.run_folder)
    assert read.sites == sorted(federation.rows)
    assert len(read.rounds) == len((federation.run_folder / "rounds.jsonl").read_text().splitlines()) / 2


# ---- resuming ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", ["SIGINT", "SIGKILL"])
def test_an_interrupted_fit_goes_on_to_the_same_model(federation: Federation, signal: str) -> None:
    federation.write_study(SLOW, solver="power")
    stopped = python("-c", STOP_AT_ROUND_12, signal, "fit", federation.study, cwd=federation.folder)
    if signal == "SIGINT":
        assert stopped.returncode == 130
        assert f"Go on with: fedspan fit {federation.study} --resume" in stopped.stderr
        assert "Traceback" not in stopped.stderr
    run = federation.run_folder
    assert not (run / "model.fedspan").exists()
    assert (run / "rounds.jsonl").exists()

    again = invoke("fit", federation.study)
    assert again.exit_code == 6
    assert "--resume" in again.stderr

    assert invoke("fit", federation.study, "--resume").exit_code == 0
    invoke("fit", federation.study, "--folder", federation.folder / "whole")
    assert_same_model(run, federation.folder / "whole")


def stop_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a fit in this process fail after a few rounds."""
    real = fit.run

    def failing(*arguments: Any, watchers: list[Any], **more: Any) -> Any:
        def fail(record: RoundRecord, estimate: object) -> None:
            if record.round == 5:
                raise error

        return real(*arguments, watchers=[*watchers, fail], **more)

    monkeypatch.setattr(fit, "run", failing)


def interrupt_fit(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        stop_with(KeyboardInterrupt(), patched)
        assert invoke("fit", federation.study).exit_code == 130


def test_a_site_that_fails_keeps_the_rounds_for_later(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    federation.write_study(SLOW, solver="power")
    with monkeypatch.context() as patched:
        stop_with(SiteError("site 'lyon' failed in step gram.multiply: no route to host"), patched)
        result = invoke("fit", federation.study)
    assert result.exit_code == 5
    assert "site 'lyon' failed" in result.stderr
    assert "--resume" in result.stderr
    assert invoke("fit", federation.study, "--resume").exit_code == 0


def test_the_hint_to_resume_names_the_folder_too(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = federation.folder / "my runs"
    federation.write_study(SLOW, solver="power")
    with monkeypatch.context() as patched:
        stop_with(KeyboardInterrupt(), patched)
        result = invoke("fit", federation.study, "--folder", folder)
    command = result.stderr.split("Go on with: fedspan ")[1].strip()
    assert invoke(*shlex.split(command)).exit_code == 0
    assert (folder / "model.fedspan").exists()


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("n_components = 2", "n_components = 3", "n_components"),
        ("rounds = 40", "rounds = 41", "solver"),
        ("seed = 3", "seed = 4", "seed"),
        ('lyon = "lyon.csv"', 'lyon = "turin.csv"', "sites"),
        ("[run]", "[data]\nscale = true\n[run]", "preparation"),
    ],
)
def test_a_run_is_not_resumed_with_another_study(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, before: str, after: str, named: str
) -> None:
    federation.write_study(SLOW, solver="power")
    interrupt_fit(federation, monkeypatch)
    text = federation.study.read_text()
    assert before in text
    federation.study.write_text(text.replace(before, after))
    result = invoke("fit", federation.study, "--resume", "--json")
    assert result.exit_code == 6
    assert "the study changed" in result.stderr
    assert named in result.stderr
    assert json.loads(result.stdout)["kind"] == "ResumeError"
    assert not (federation.run_folder / "model.fedspan").exists()


@pytest.mark.parametrize("record", ["transcript", "rounds"])
def test_a_run_keeps_its_transcript_whole_or_has_none(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    other = "rounds" if record == "transcript" else "transcript"
    federation.write_study(f'{SLOW}record = "{record}"\n', solver="power")
    interrupt_fit(federation, monkeypatch)
    federation.write_study(f'{SLOW}record = "{other}"\n', solver="power")
    result = invoke("fit", federation.study, "--resume")
    assert result.exit_code == 6
    assert f'this run began with record = "{record}"' in result.stderr
    assert "its transcript would have a hole" in result.stderr
    federation.write_study(f'{SLOW}record = "{record}"\n', solver="power")
    assert invoke("fit", federation.study, "--resume").exit_code == 0
    assert (federation.run_folder / "transcript").exists() == (record == "transcript")


def test_a_run_is_not_resumed_when_a_site_has_other_rows(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.write_study(SLOW, solver="power")
    interrupt_fit(federation, monkeypatch)
    federation.write_site("lyon", federation.rows["lyon"][:-1])
    result = invoke("fit", federation.study, "--resume")
    assert result.exit_code == 6
    assert "lyon" in result.stderr


def test_there_is_nothing_to_resume(federation: Federation) -> None:
    assert invoke("fit", federation.study, "--resume").exit_code == 6
    invoke("fit", federation.study)
    result = invoke("fit", federation.study, "--resume")
    assert result.exit_code == 6
    assert "holds no unfinished run" in result.stderr


# ---- what cannot be used -----------------------------------------------------------------------------------------


def _columns(federation: Federation) -> None:
    federation.write_site("lyon", federation.rows["lyon"], ["age", "mass", "height", "pulse", "iron", "gold"])


def _duplicates(federation: Federation) -> None:
    for site, rows in federation.rows.items():
        federation.write_site(site, rows, ["age", "mass", "height", "pulse", "iron", "iron"])


def _no_rows(federation: Federation) -> None:
    federation.write_site("lyon", np.empty((0, 6)))


def _gap(federation: Federation) -> None:
    rows = federation.rows["lyon"].copy()
    rows[2, 3] = np.nan
    federation.write_site("lyon", rows)


def _infinite(federation: Federation) -> None:
    rows = federation.rows["lyon"].copy()
    rows[2, 3] = np.inf
    federation.write_site("lyon", rows)


def _cut(federation: Federation) -> None:
    text = federation.file("lyon").read_text()
    federation.file("lyon").write_text(text[: len(text) // 2].rsplit(",", 1)[0])


def _absent(federation: Federation) -> None:
    federation.file("lyon").unlink()


def _text(federation: Federation) -> None:
    text = federation.file("lyon").read_text().splitlines()
    text[1] = "young" + text[1][text[1].index(",") :]
    federation.file("lyon").write_text("\n".join(text))


def _nothing(federation: Federation) -> None:
    pass


@pytest.mark.parametrize(
    ("spoil", "study", "code", "texts"),
    [
        (_columns, {}, 4, ["site 'lyon' has other columns than site 'berlin'", "gold", "zinc"]),
        (_duplicates, {}, 4, ["site 'berlin' has duplicate columns ['iron']"]),
        (_no_rows, {}, 4, ["site 'lyon' has no rows"]),
        (_gap, {}, 4, ["site 'lyon' has NaN", "'pulse'", 'missing = "mean"']),
        (_infinite, {"more": '[data]\nmissing = "mean"\n'}, 4, ["site 'lyon' has infinite", "'pulse'"]),
        (_nothing, {"k": 7}, 4, ["n_components = 7", "6 features"]),
        (_nothing, {"more": "[data]\nmin_rows = 30\n"}, 4, ["site 'lyon' has 25 rows", "min_rows = 30"]),
        (_nothing, {"more": "[data]\ncentre = true\n"}, 3, ["[data] has no key 'centre'", "'center'"]),
        (_nothing, {"solver": "krilov"}, 3, ["no solver 'krilov'", "'krylov'"]),
        (_cut, {}, 4, ["site 'lyon': ", "lyon.csv", "fields"]),
        (_absent, {}, 4, ["site 'lyon': ", "lyon.csv", "no such file"]),
        (_text, {}, 4, ["site 'lyon': ", "age", "not numeric", "drop"]),
        (_nothing, {"more": '[data]\ndrop = ["agee"]\n'}, 4, ["no site has a column 'agee'", "'age'"]),
        (_nothing, {"more": "[participation]\nfraction = 0.5\n"}, 3, ["krylov needs every site"]),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_and_leaves_nothing(
    federation: Federation, spoil: object, study: dict[str, object], code: int, texts: list[str]
) -> None:
    spoil(federation)  # type: ignore[operator]
    federation.write_study(**study)  # type: ignore[arg-type]
    result = invoke("fit", federation.study)
    assert result.exit_code == code
    message = result.stderr.splitlines()[-1]
    assert message.startswith("fedspan: ")
    for text in texts:
        assert text in message
    assert result.stdout == ""
    assert not federation.run_folder.exists()


def test_a_truncated_binary_file_is_refused_by_name(federation: Federation) -> None:
    path = federation.folder / "lyon.npz"
    np.savez(path, X=federation.rows["lyon"], columns=np.array(COLUMNS))
    path.write_bytes(path.read_bytes()[:-200])
    federation.study.write_text(federation.study.read_text().replace("lyon.csv", "lyon.npz"))
    result = invoke("fit", federation.study)
    assert result.exit_code == 4
    assert "site 'lyon': " in result.stderr
    assert "cut short" in result.stderr


def test_a_file_that_changes_during_the_run_is_named(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fit.run

    def meddled(*arguments: Any, **more: Any) -> Any:
        federation.write_site("lyon", federation.rows["lyon"][::-1][:9])
        return real(*arguments, **more)

    monkeypatch.setattr(fedspan.data.text, "CACHE_BYTES", 0)  # as for a file too large to keep
    monkeypatch.setattr(fit, "run", meddled)
    result = invoke("fit", federation.study)
    assert result.exit_code == 4
    assert "site 'lyon': " in result.stderr
    assert "the file changed" in result.stderr
    assert not federation.run_folder.exists()


def test_a_folder_that_was_there_loses_nothing_to_a_failed_run(federation: Federation) -> None:
    kept = federation.folder / "mine"
    kept.mkdir()
    federation.write_study(k=7)
    assert invoke("fit", federation.study, "--folder", kept).exit_code == 4
    assert list(kept.iterdir()) == []
    (kept / "notes.txt").write_text("mine")
    federation.write_study()
    summary = json.loads(invoke("fit", federation.study, "--folder", kept, "--json").stdout)
    assert summary["folder"] == str(kept)
    assert (kept / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("cause", [DataError("column 'iron' is empty; leave it out"), ZeroDivisionError("by zero")])
def test_what_a_site_keeps_in_its_log_is_said_here_too(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, cause: Exception
) -> None:
    """Was a fault once: "the site's own log says more", and the log was deleted with the folder."""
    privacy = GaussianPrivacy(1.0, 1e-6, row_norm=1.0)
    site = Site("lyon", None, policy=SitePolicy(Releases(privacy, run="r", who="lyon", sites=1)))

    def failing(*_: object, **__: object) -> None:
        raise site.policy.refusal(site, replace(Round(gram), number=3), cause) from cause

    monkeypatch.setattr(fit, "run", failing)
    result = invoke("fit", federation.study, "--json")
    assert "site 'lyon' cannot answer round 3 (covariance.gram)" in result.stderr
    assert f"log says more. It says: {cause}" in result.stderr
    assert json.loads(result.stdout)["error"].endswith(str(cause))


def test_an_error_that_is_ours_is_not_hidden(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(fit, "run", broken)
    with pytest.raises(ZeroDivisionError):
        invoke("fit", federation.study)


@pytest.mark.parametrize("charged", [False, True])
def test_a_failed_run_leaves_a_folder_with_a_linked_ledger_as_it_was(federation: Federation, charged: bool) -> None:
    """Was a fault once: other sites' memories stayed, and the mended study was refused for its other rows."""
    federation.write_study(PRIVATE, solver="covariance", k=7)
    shared, home = federation.folder / "berlin.sqlite", federation.folder / "here" / "sites" / "berlin"
    home.mkdir(parents=True)
    with Ledger(shared) as ledger:
        if charged:
            ledger.charge(run="another", round=1, question="q", step="s", release="r", cost=0.01)
    (home / "ledger.sqlite").symlink_to(shared)
    before = sorted((federation.folder / "here").rglob("*"))
    assert invoke("fit", federation.study, "--folder", federation.folder / "here").exit_code == 4
    assert sorted((federation.folder / "here").rglob("*")) == before
    federation.write_site("lyon", federation.rows["lyon"][:-1])
    federation.write_study(PRIVATE, solver="covariance")
    assert invoke("fit", federation.study, "--folder", federation.folder / "here").exit_code == 0
