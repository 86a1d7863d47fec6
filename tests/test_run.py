"""Assembling and running a study: ranks, solvers, starts and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedspan.data import Preparation, SymmetricSource, open_source
from fedspan.errors import ConfigurationError, DataError, ResumeError
from fedspan.metrics import projection_distance
from fedspan.privacy.transcript import Transcript
from fedspan.rounds import Cohort
from fedspan.run import Study, run
from fedspan.solvers import BlockKrylov, Covariance, FedPower, Power
from tests.wire import Wire

RNG = np.random.default_rng(0)
SITES = {
    "a": RNG.standard_normal((40, 8)) * 2.0 ** -np.arange(8),
    "b": RNG.standard_normal((60, 8)) * 2.0 ** -np.arange(8),
}
X = np.vstack(list(SITES.values()))


def sources(sites=SITES):
    return {name: open_source(x) for name, x in sites.items()}


def study(**settings):
    return Study(**{"n_components": 3, **settings})


def exact(x, k, center=True):
    x = x - x.mean(axis=0) if center else x
    _, s, vt = np.linalg.svd(x, full_matrices=False)
    return vt[:k].T, s**2


def test_a_result_says_what_was_found_and_what_it_took():
    result = run(study(), sources())
    basis, values = exact(X, 3)
    assert projection_distance(result.estimate.basis, basis) < 1e-8
    np.testing.assert_allclose(result.estimate.values, values[:3], rtol=1e-8)
    assert result.facts.total == pytest.approx(values.sum())
    assert result.facts.n_rows == 100
    assert isinstance(result.solver, BlockKrylov)
    assert result.converged is True
    assert (result.rounds, result.setup_rounds) == (len(result.history) - 3, 3)
    assert result.bytes_up == sum(r.bytes_up for r in result.history)
    assert result.bytes_down == sum(r.bytes_down for r in result.history)


def test_signs_are_canonical():
    basis = run(study(), sources()).estimate.basis
    assert np.all(basis[np.abs(basis).argmax(axis=0), range(3)] > 0)


def test_watchers_see_every_round_with_its_estimate():
    seen = []
    result = run(study(), sources(), watchers=[lambda record, estimate: seen.append((record, estimate))])
    assert [record for record, _ in seen] == result.history
    assert all((estimate is None) == record.setup for record, estimate in seen)


def test_a_study_needs_a_site():
    with pytest.raises(ConfigurationError, match="at least one site"):
        run(study(), {})


# ---- ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [0, -1, 9])
def test_impossible_ranks_are_refused(wanted):
    with pytest.raises(DataError, match=f"n_components = {wanted} must lie between 1 and 8"):
        run(study(n_components=wanted), sources())


@pytest.mark.parametrize("wanted", [0.0, 1.0, 1.5, -0.5])
def test_impossible_fractions_are_refused(wanted):
    with pytest.raises(ConfigurationError, match=r"lies in \(0, 1\)"):
        run(study(n_components=wanted), sources())


def test_other_words_are_refused():
    with pytest.raises(ConfigurationError, match="'mle'"):
        run(study(n_components="mle"), sources())


@pytest.mark.parametrize("solver", ["krylov", "covariance", "power"])
@pytest.mark.parametrize("fraction", [0.3, 0.8, 0.95, 0.999])
def test_a_fraction_keeps_the_least_that_reaches_it(solver, fraction):
    result = run(study(n_components=fraction, solver=solver), sources())
    _, values = exact(X, 8)
    shares = np.cumsum(values) / values.sum()
    assert len(result.estimate.values) == np.flatnonzero(shares >= fraction)[0] + 1
    assert result.estimate.basis.shape == (8, len(result.estimate.values))


def wide(rank, rows=300, features=60, seed=1, strength=6.0):
    rng = np.random.default_rng(seed)
    signal = rng.standard_normal((rows, rank)) @ np.linalg.qr(rng.standard_normal((features, rank)))[0].T
    x = strength * signal + rng.standard_normal((rows, features))
    return {"a": x[:100], "b": x[100:]}


@pytest.mark.parametrize("rank", [1, 4, 20])
def test_auto_finds_the_rank_of_a_signal(rank):
    result = run(study(n_components="auto"), sources(wide(rank)))
    assert len(result.estimate.values) == rank


def test_a_rank_beyond_the_first_try_is_found_from_the_last_answer():
    """Sixteen components are tried first, then twice as many, each from what was found before."""
    seen = []
    sites = wide(40, strength=20.0)
    result = run(study(n_components=0.999), sources(sites), watchers=[lambda r, e: seen.append(e)])
    leading, values = exact(np.vstack(list(sites.values())), 16)
    assert len(result.estimate.values) == np.flatnonzero(np.cumsum(values) >= 0.999 * values.sum())[0] + 1
    assert len(result.estimate.values) > 16
    widths = [estimate.shape[1] for estimate in seen if estimate is not None]
    assert set(widths) == {16, 32, 60} or set(widths) == {16, 32}
    first_wider = next(e for e in seen if e is not None and e.shape[1] == 32)
    np.testing.assert_allclose(first_wider @ (first_wider.T @ leading), leading, atol=1e-4)


def test_the_least_rank_is_that_of_the_rows():
    few = {"a": RNG.standard_normal((3, 8)), "b": RNG.standard_normal((2, 8))}
    with pytest.raises(DataError, match="between 1 and 5"):
        run(study(n_components=6), sources(few))
    assert run(study(n_components=5), sources(few)).estimate.basis.shape == (8, 5)


# ---- solvers and cohorts ---------------------------------------------------------------------------------------


def test_auto_takes_what_fits():
    assert isinstance(run(study(solver="auto"), sources()).solver, Covariance)
    assert isinstance(run(study(solver="auto", cohort=Cohort(first=1)), sources()).solver, FedPower)
    by_size = Cohort(sample="by-size-with-replacement")
    assert isinstance(run(study(solver="auto", cohort=by_size), sources()).solver, FedPower)
    long = {"a": np.random.default_rng(0).standard_normal((12, 400))}
    assert isinstance(run(study(solver="auto"), sources(long)).solver, BlockKrylov)


def test_a_name_is_a_solver_with_its_defaults():
    assert run(study(solver="power"), sources()).solver == Power()
    with pytest.raises(ConfigurationError, match="did you mean 'krylov'"):
        run(study(solver="krylof"), sources())
    for wrong in (None, Power, 3):
        with pytest.raises(ConfigurationError, match="solver is"):
            run(study(solver=wrong), sources())


def test_a_cohort_of_strangers_is_refused():
    with pytest.raises(ConfigurationError, match="the cohort names"):
        run(study(solver="power", cohort=Cohort(only=("z",))), sources())


# ---- starts ----------------------------------------------------------------------------------------------------


def test_a_warm_start_cuts_rounds():
    cold = run(study(solver=Power(rounds=300)), sources())
    warm = run(study(solver=Power(rounds=300), init=cold.estimate.basis), sources())
    assert warm.rounds <= 2 < cold.rounds
    assert projection_distance(warm.estimate.basis, cold.estimate.basis) < 1e-8


@pytest.mark.parametrize("width", [1, 3, 8])
def test_a_start_may_be_narrower_or_wider(width):
    init = exact(X, 8)[0][:, :width]
    result = run(study(init=init), sources())
    assert projection_distance(result.estimate.basis, exact(X, 3)[0]) < 1e-8


@pytest.mark.parametrize("init", [np.eye(7)[:, :3], np.ones(8)], ids=["rows", "dimensions"])
def test_a_start_of_another_shape_is_refused(init):
    with pytest.raises(ConfigurationError, match="init is a basis of 8 rows"):
        run(study(init=init), sources())


# ---- symmetric shares ------------------------------------------------------------------------------------------


def test_shares_of_a_symmetric_matrix_give_its_leading_eigenvectors():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((6, 6)) for _ in range(3)]
    shares = [part + part.T for part in parts]
    matrix = sum(shares) + 20 * np.eye(6)
    given = {f"{i}": SymmetricSource(share + 20 / 3 * np.eye(6)) for i, share in enumerate(shares)}
    result = run(study(n_components=2, preparation=Preparation(center=False)), given)
    values, vectors = np.linalg.eigh(matrix)
    assert projection_distance(result.estimate.basis, vectors[:, -2:]) < 1e-7
    np.testing.assert_allclose(result.estimate.values, values[::-1][:2], rtol=1e-8)
    with pytest.raises(ConfigurationError, match="no rows to centre"):
        run(study(n_components=2), given)


# ---- folders ---------------------------------------------------------------------------------------------------


def test_a_folder_holds_the_terms_and_the_rounds(tmp_path):
    result = run(study(solver=FedPower(sync=[1, 3], rounds=4)), sources(), folder=tmp_path / "run")
    terms = json.loads((tmp_path / "run" / "terms.json").read_text())
    assert terms["solver"]["fedpower"]["sync"] == [1, 3]
    assert terms["sites"] == {"a": [40, 8], "b": [60, 8]}
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert len(lines) == 2 * len(result.history)
    assert sorted(p.name for p in (tmp_path / "run" / "sites").iterdir()) == ["a", "b"]
    again = run(study(solver=FedPower(sync=[1, 3], rounds=4)), sources(), folder=tmp_path / "run", resume=True)
    assert again.estimate.basis.tobytes() == result.estimate.basis.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"n_components": 2},
        {"seed": 1},
        {"solver": "power"},
        {"preparation": Preparation(scale=True)},
        {"cohort": Cohort(first=1)},
        {"init": np.eye(8)[:, :3]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_study_cannot_be_resumed(tmp_path, change):
    run(study(), sources(), folder=tmp_path)
    with pytest.raises(ResumeError, match=f"the study changed since this run began: {next(iter(change))}"):
        run(replace(study(), **change), sources(), folder=tmp_path, resume=True)


def test_changed_sites_cannot_be_resumed(tmp_path):
    run(study(), sources(), folder=tmp_path)
    for other in ({"a": SITES["a"]}, {**SITES, "c": X}, {**SITES, "a": X}):
        with pytest.raises(ResumeError, match="sites"):
            run(study(), sources(other), folder=tmp_path, resume=True)


def test_a_transcript_is_kept_only_where_it_is_asked_for(tmp_path):
    run(study(), sources(), folder=tmp_path / "rounds")
    result = run(study(), sources(), folder=tmp_path / "transcript", record="transcript")
    assert not (tmp_path / "rounds" / "transcript").exists()
    read = Transcript.read(tmp_path / "transcript")
    assert [seen.step for seen in read.rounds] == [record.step for record in result.history]
    assert read.sites == ["a", "b"]


def test_a_transcript_needs_a_folder(tmp_path):
    with pytest.raises(ConfigurationError, match=r"in the run folder, and none was given; name one"):
        run(study(), sources(), record="transcript")
    with pytest.raises(ConfigurationError, match=r"got 'transcripts'; did you mean 'transcript'\?"):
        run(study(), sources(), folder=tmp_path / "run", record="transcripts")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("before", "after"), [("transcript", "rounds"), ("rounds", "transcript")])
def test_a_run_goes_on_with_what_it_kept_from_the_start(tmp_path, before, after):
    run(study(), sources(), folder=tmp_path, record=before)
    with pytest.raises(ResumeError, match=f'began with record = "{before}" and cannot go on with "{after}"'):
        run(study(), sources(), folder=tmp_path, record=after, resume=True)
    run(study(), sources(), folder=tmp_path, record=before, resume=True)


def test_a_run_from_before_there_were_transcripts_is_resumed(tmp_path):
    run(study(), sources(), folder=tmp_path)
    terms = json.loads((tmp_path / "terms.json").read_text())
    del terms["record"]
    (tmp_path / "terms.json").write_text(json.dumps(terms))
    run(study(), sources(), folder=tmp_path, resume=True)


def test_a_transcript_of_another_run_is_not_mixed_up_with_this_one(tmp_path):
    run(study(), sources(), folder=tmp_path, record="transcript")
    (tmp_path / "rounds.jsonl").unlink()
    with pytest.raises(ResumeError, match="holds a run already"):
        run(study(), sources(), folder=tmp_path)


def test_a_refused_study_leaves_no_transcript(tmp_path):
    with pytest.raises(DataError, match="n_components = 9"):
        run(study(n_components=9), sources(), folder=tmp_path, record="transcript")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_is_a_name_or_a_callable():
    here = run(study(), sources(), engine="in-process")
    there = run(study(), sources(), engine=Wire)
    assert projection_distance(here.estimate.basis, there.estimate.basis) < 1e-12
    with pytest.raises(ConfigurationError, match="there is no engine 'ray'"):
        run(study(), sources(), engine="ray")
