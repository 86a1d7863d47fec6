"""``fedspan compare`` on private studies: what it spends, and what it refuses before anything is spent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedspan.cli import compare
from fedspan.errors import CohortError
from fedspan.privacy.accountant import epsilon_of, mu_of
from tests.cli.conftest import Federation, invoke

PRIVACY = "[privacy]\nepsilon = 1.0\ndelta = 1e-6\nrow_norm = 10.0\n"


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note the studies that are run."""
    made: list[Any] = []
    real = compare.run

    def noting(study: Any, *arguments: Any, **more: Any) -> Any:
        made.append(study)
        return real(study, *arguments, **more)

    monkeypatch.setattr(compare, "run", noting)
    return made


# Was a fault once: three solvers spent their budgets, then faps was refused, and their results were lost.
@pytest.mark.parametrize(("more", "solver"), [("", "faps"), ('trust = "central"\n', "mod-sulq")])
def test_a_solver_that_cannot_serve_is_refused_before_any_runs(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, more: str, solver: str
) -> None:
    federation.write_study(PRIVACY + more, solver="covariance")
    made = count_runs(monkeypatch)
    result = invoke("compare", federation.study, "--solvers", f"covariance,private-power,krylov,{solver}")
    assert result.exit_code == 3
    assert f"--solvers: {solver} cannot run on this study: " in result.stderr
    assert [study for study in made if study.privacy is not None] == []


def test_terms_that_nothing_can_serve_are_refused_before_the_exact_answer(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.write_study(f"{PRIVACY}[data]\nscale = true\n", solver="covariance")
    made = count_runs(monkeypatch)
    result = invoke("compare", federation.study)
    assert result.exit_code == 3
    assert "scale = true needs the columns' ranges" in result.stderr
    assert made == []


def test_a_named_solver_that_needs_every_site_is_refused_before_any_runs(federation: Federation) -> None:
    federation.write_study("[participation]\nfraction = 0.5\n", solver="fedpower")
    result = invoke("compare", federation.study, "--solvers", "fedpower,krylov")
    assert result.exit_code == 3
    assert "--solvers: krylov cannot run on this study: krylov needs every site" in result.stderr


def test_those_that_do_not_fit_are_left_out_where_none_was_named(federation: Federation) -> None:
    federation.write_study(f'{PRIVACY}n_public = true\ncalibration = "published"\nformula = "ppm"\n', solver="power")
    result = invoke("compare", federation.study, "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert {trial["solver"] for trial in told["trials"]} == {"power", "private-power", "krylov"}
    assert any(text.startswith("covariance is left out: formula 'ppm' is not about") for text in told["warnings"])


def test_what_all_runs_spend_together_is_said_once(federation: Federation) -> None:
    federation.write_study(PRIVACY, solver="covariance")
    result = invoke("compare", federation.study, "--solvers", "covariance,power", "--json")
    together = epsilon_of(2**0.5 * mu_of(1.0, 1e-6), 1e-6)
    told = (
        "this makes 2 new runs, each of which spends a full budget of its own on the same rows: epsilon 1 (delta "
        f"1e-06), all together epsilon {together:.3g}; what other runs spent adds to it, and no ledger keeps it."
    )
    assert result.stderr.count(told) == 1
    assert json.loads(result.stdout)["warnings"].count(told) == 1
    federation.write_study()
    assert json.loads(invoke("compare", federation.study, "--solvers", "power", "--json").stdout)["warnings"] == []


def fail_with(error: Exception, monkeypatch: pytest.MonkeyPatch, *solvers: str) -> None:
    real = compare.run

    def failing(study: Any, *arguments: Any, **more: Any) -> Any:
        if study.solver in solvers:
            raise error
        return real(study, *arguments, **more)

    monkeypatch.setattr(compare, "run", failing)


def test_what_one_solver_lacks_does_not_lose_the_others(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.write_study(PRIVACY, solver="covariance")
    fail_with(CohortError("too few sites answered"), monkeypatch, "power")
    told = json.loads(invoke("compare", federation.study, "--solvers", "covariance,power", "--json").stdout)
    assert [trial["solver"] for trial in told["trials"]] == ["covariance"]
    assert "power is left out: too few sites answered" in told["warnings"]


def test_a_comparison_of_nothing_is_an_error(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    federation.write_study(PRIVACY, solver="covariance")
    fail_with(CohortError("too few sites answered"), monkeypatch, "covariance", "power")
    result = invoke("compare", federation.study, "--solvers", "covariance,power")
    assert result.exit_code == 5
    assert "too few sites answered" in result.stderr
