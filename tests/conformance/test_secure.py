"""Every solver of sums under secure sums: the same sums to the fixed-point step, on every engine, whoever is killed."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from fedspan.data import Preparation, open_source
from fedspan.encoding import decode
from fedspan.engines import InProcess, VirtualTime
from fedspan.errors import CohortError, ConfigurationError
from fedspan.layers import secure_sums
from fedspan.metrics import projection_distance
from fedspan.privacy.ledger import Ledger
from fedspan.rounds import Outcome, Round, drive
from fedspan.run import Study, run
from fedspan.secure import Party, SecureSums, fixed_point, steps
from fedspan.sites import LEDGER, open_sites
from fedspan.solvers import SOLVERS, Power, PrivatePower, make
from tests.conformance.solvers import CASES, PRIVATE, Case, D, bits, promise, rows_of, solve, traffic
from tests.wire import CoordinatorDown, Log, Wire

RULES = SecureSums()


def adds_up(case: Case) -> bool:
    """Whether a solver needs sums only."""
    return getattr(case.solver, "sums_only", True)


@pytest.fixture(autouse=True)
def same_dither(monkeypatch):
    """Sites' identities are new in each run, and their dither with them: here it is that of site and question alone."""

    def rng(self, *about):
        told = hashlib.sha256(repr((self.name, about)).encode()).digest()
        return np.random.default_rng(int.from_bytes(told, "little"))

    monkeypatch.setattr(Party, "rng", rng)


MASKED = [case for case in CASES if adds_up(case)]
SHOWN = [case for case in CASES if not adds_up(case)]
SCALED = [case for case in PRIVATE if adds_up(case) and case.id != "fedpower-published"]
private = pytest.mark.parametrize("case", SCALED, ids=str)


def shorter(case: Case) -> Case:
    """Return a case of fewer rounds: masked and plain runs agree long before they are exact."""
    rounds = getattr(case.solver, "rounds", None)
    return case if rounds is None else replace(case, solver=replace(case.solver, rounds=min(rounds, 6)))


masked = pytest.mark.parametrize("case", [shorter(case) for case in MASKED], ids=str)


def sites_for(case: Case) -> dict[str, np.ndarray]:
    """Enough sites for a sum: where they are drawn with replacement, some are not drawn."""
    if case.cohort.sample == "uniform":
        return rows_of()
    return rows_of(sizes={f"s{i:02}": 12 + i for i in range(12)})


def secured(case: Case, sites: Any = None, **settings: Any) -> Any:
    """Run a case under secure sums."""
    return solve(case, sites_for(case) if sites is None else sites, secure=RULES, **settings)


# ---- the sums --------------------------------------------------------------------------------------------------


class Beside:
    """A plain engine; every question is put to masked twins of its sites too, and the sums are compared."""

    def __init__(self, case: Case, sites: dict[str, np.ndarray]) -> None:
        self._case, self._sources = case, {name: open_source(x) for name, x in sites.items()}
        self.worst = 0.0
        self.compared = 0

    def __call__(self, sites: Any, seed: int) -> Any:
        study = Study(
            n_components=3, solver=self._case.solver, cohort=self._case.cohort, secure=RULES, seed=seed,
            preparation=Preparation(center=self._case.center),
        )  # fmt: skip
        self._terms = study.masks(len(self._sources))
        self._twins = Wire(open_sites(self._sources, seed=seed, masks=self._terms), seed)
        self._plain = Wire(sites, seed)
        return self._execute

    def _execute(self, question: Round) -> Outcome:
        outcome = self._plain(question)
        twin = drive(secure_sums(_once(question), self._terms), self._twins)
        if not question.step.public:
            self._compare(outcome, twin)
        return outcome

    def _compare(self, outcome: Outcome, twin: Outcome) -> None:
        assert twin.sites == outcome.sites
        pairs = [(outcome.value, twin.value)]
        if isinstance(outcome.value, dict):
            assert set(outcome.value) == set(twin.value)
            pairs = [(outcome.value[name], twin.value[name]) for name in outcome.value]
        for plain, ours in pairs:
            plain, ours = np.asarray(plain), np.asarray(ours)
            assert plain.shape == ours.shape
            # each site's number is moved by half a step at most, and either sum is rounded once to a float
            allowed = twin.masked.rounding + np.spacing(np.abs(plain)).max(initial=0.0)
            assert np.abs(plain - ours).max(initial=0.0) <= allowed
            size = max(np.abs(plain).max(initial=0.0), 1e-300)
            self.worst = max(self.worst, twin.masked.rounding / size)
        self.compared += 1


def _once(question: Round) -> Any:
    """A solver of one question, which is told the whole outcome."""
    return (yield question)


@masked
def test_a_masked_sum_is_the_plain_sum_to_the_fixed_point_step(case):
    sites = sites_for(case)
    beside = Beside(case, sites)
    result = solve(case, sites, engine=beside)
    assert beside.compared == len(result.history) - 1
    assert 0 < beside.worst < 1e-13  # of the largest number of the sum


@masked
def test_a_masked_run_ends_where_the_plain_one_does(case):
    sites = sites_for(case)
    ours, plain = secured(case, sites), solve(case, sites, engine=Wire)
    tolerance = 1e-8
    assert projection_distance(ours.estimate.basis, plain.estimate.basis) < tolerance
    np.testing.assert_allclose(
        ours.estimate.values, plain.estimate.values, atol=tolerance * plain.estimate.values.max()
    )
    assert [(r.step, r.sites) for r in ours.history] == [(r.step, r.sites) for r in plain.history]
    check_history(ours)


def check_history(result: Any) -> None:
    """A history tells how each sum was made."""
    assert result.history[0].masked is None
    for record in result.history[1:]:
        assert record.aggregate == "sum"
        assert record.masked.asked >= record.sites >= 3
        assert record.masked.neighbours == record.masked.asked - 1
        assert record.masked.quorum <= record.sites
        assert record.masked.rounding > 0
        assert record.masked.attempts == 1
        assert not record.masked.refused


@masked
def test_engines_and_the_order_of_sites_do_not_change_a_bit(case):
    sites = sites_for(case)
    whole = secured(case, sites)
    backwards = dict(reversed(sites.items()))
    others = [
        secured(case, sites, engine=partial(Wire, shuffle=1)),
        secured(case, backwards),
        *([] if case.cohort.first else [secured(case, sites, engine=VirtualTime(communication=0.5))]),
    ]
    for other in others:
        assert bits(other) == bits(whole)
        assert [r[:5] for r in traffic(other)] == [r[:5] for r in traffic(whole)] or case.cohort.first


# ---- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SHOWN, ids=str)
def test_a_solver_that_shows_single_replies_is_refused_before_anything_is_written(case, tmp_path):
    with pytest.raises(ConfigurationError, match="shows the coordinator single replies, or waits for few"):
        secured(case, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_registered_solver_is_masked_or_refused():
    assert {case.name for case in [*MASKED, *SHOWN]} == set(SOLVERS) - {"private-power"}
    for name, kind in SOLVERS.items():
        assert isinstance(getattr(kind(), "sums_only", True), bool), name


@pytest.mark.parametrize("sites", [1, 2])
def test_fewer_than_three_sites_are_refused(sites, tmp_path):
    rows = dict(list(rows_of().items())[:sites])
    with pytest.raises(ConfigurationError, match=f"secure sums need at least 3 sites.*got {sites}"):
        secured(MASKED[0], rows, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- privacy ---------------------------------------------------------------------------------------------------


@private
def test_under_every_trust_masks_change_nothing_but_what_is_seen(case):
    """The noise comes of a seed, so it is the same with masks and without; split noise has masks anyhow."""
    ours, plain = secured(case), solve(case)
    shared = case.privacy.trust == "distributed"
    tolerance = 0.0 if shared else 1e-9
    assert projection_distance(ours.estimate.basis, plain.estimate.basis) <= max(tolerance, 1e-15)
    np.testing.assert_allclose(ours.estimate.values, plain.estimate.values, rtol=tolerance)
    assert [r.share for r in ours.privacy.releases] == [r.share for r in plain.privacy.releases]
    assert all(record.masked is not None for record in ours.history[1:])
    exact = case.privacy.trust != "central" and case.privacy.arithmetic == "grid"
    assert all((record.masked.rounding == 0.0) == exact for record in ours.history[1:])


@private
def test_private_runs_are_the_same_on_every_engine(case):
    whole = secured(case)
    for engine in (partial(Wire, shuffle=3), *([] if case.cohort.first else [VirtualTime()])):
        assert bits(secured(case, engine=engine)) == bits(whole)


def test_noise_that_is_larger_at_larger_sites_cannot_be_masked(tmp_path):
    case = next(case for case in PRIVATE if case.id == "fedpower-published")
    with pytest.raises(ConfigurationError, match="FedPower's published noise is larger the larger a site is"):
        secured(case, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_sum_of_split_noise_is_that_of_the_releases_to_the_bit(monkeypatch):
    """What is unmasked is the sum of the releases as they left the sites' policies: nothing is rounded in between."""
    kept, sums = [], {}
    plain = steps._parts

    def keeping(reply, mean, times):
        kept.append(np.asarray(reply.value))
        return plain(reply, mean, times)

    monkeypatch.setattr(steps, "_parts", keeping)
    monkeypatch.setattr(fixed_point, "decode", lambda total, e, real=fixed_point.decode: sums.setdefault(
        len(sums), real(total, e)))  # fmt: skip
    solve(SPLIT)
    releases = [value for value in kept if value.ndim == 2]
    totals = [total for total in sums.values() if total.ndim == 2]
    assert len(releases) == 4 * len(totals) == 4 * 2
    for i, total in enumerate(totals):
        assert np.array_equal(total, sum(releases[4 * i : 4 * i + 4]))


# ---- what leaves a site ----------------------------------------------------------------------------------------


def uniform(data: bytes) -> bool:
    """Whether bytes look random: bits by their number of ones, bytes by their frequencies; wrong once in 10^9."""
    octets = np.frombuffer(data, np.uint8)
    ones, bits_of = int(np.bitwise_count(octets).sum()), 8 * octets.size
    counts = np.bincount(octets, minlength=256)
    frequency = float(((counts - octets.size / 256) ** 2).sum() / (octets.size / 256))
    return abs(2 * ones - bits_of) < 6.2 * np.sqrt(bits_of) and frequency < chi2.isf(1e-9, 255)


def test_what_leaves_a_site_in_a_masked_round_looks_random_and_unmasked_it_would_not():
    rng = np.random.default_rng(0)
    sites = {f"s{i}": rng.standard_normal((50, 60)) for i in range(4)}
    log = Log()
    case = Case("power", Power(rounds=6, tol=0.0))
    solve(case, sites, k=10, secure=RULES, engine=partial(Wire, log=log))
    left, plain = b"", b""
    for (name, number), replies in log.left.items():
        for reply in replies:
            value = decode(reply)["value"]
            if isinstance(value, dict) and "masked" in value and value["masked"].get("value", np.zeros(1)).ndim == 2:
                left += value["masked"]["value"].astype("<u8").tobytes()
                exponent = value["exponents"]["value"]
                x = sites[name] - np.vstack(list(sites.values())).mean(axis=0)
                z = np.linalg.qr(np.random.default_rng(number).standard_normal((60, 10)))[0]
                plain += fixed_point.encode(x.T @ x @ z, exponent, np.inf).astype("<u8").tobytes()
    assert len(left) == len(plain) > 100_000
    assert uniform(left)
    assert not uniform(plain)
    assert uniform(rng.bytes(len(left)))


def test_a_site_sends_nothing_else_that_tells_of_its_rows():
    log = Log()
    solve(MASKED[2], secure=RULES, engine=partial(Wire, log=log))
    fields = Counter()
    for replies in log.left.values():
        for reply in replies:
            value = decode(reply)["value"]
            fields[tuple(sorted(value))] += 1
    assert set(fields) == {
        ("columns", "dtype", "features", "missing", "rows", "symmetric"), ("advert", "before"), ("boxes", "commitment"),
        ("about", "exponents", "masked"), ("signature",), ("own", "pairs"),
    }  # fmt: skip


# ---- kills -----------------------------------------------------------------------------------------------------

VICTIM = "berlin"
PHASES = ("keys", "shares", "masked", "consent", "release")
KRYLOV = Case("krylov", make("krylov", rounds=3, oversampling=0, tol=0.0))
SPLIT = Case("split noise", PrivatePower(rounds=2), privacy=promise("distributed"))
KILLED = pytest.mark.parametrize("case", [KRYLOV, SPLIT], ids=str)


@dataclass
class Fatal:
    """An engine in which coordinator or site die around one phase of one round, once; ``after``: when it was done."""

    folder: Path
    case: Case
    at: tuple[int, str] | None = None
    after: bool = False
    victim: str = "coordinator"
    wired: bool = True
    fired: bool = False
    sites: Any = None
    survivors: Any = None
    count: Counter[tuple[int, str]] = field(default_factory=Counter)

    def __call__(self, sites: Any, seed: int) -> Any:
        self.sites = self.survivors or sites
        execute = Wire(self.sites, seed, reopen=self.reopen) if self.wired else InProcess(self.sites, seed)

        def round_of(question: Round) -> Outcome:
            here = (question.number, question.step.name.removeprefix("secure."))
            self.count[here] += 1
            fatal = here == self.at and not self.fired
            if fatal and not self.after:
                self.kill(execute)
            outcome = execute(question)
            if fatal and self.after:
                self.kill(execute)
            return outcome

        return round_of

    def kill(self, execute: Any) -> None:
        """End a process, or both."""
        self.fired = True
        if self.victim != "coordinator":
            execute.restart(VICTIM)
        if self.victim != "site":
            self.survivors = execute.sites if self.wired and self.victim == "coordinator" else None
            raise CoordinatorDown

    def reopen(self, name: str) -> Any:
        """A site from what it left on disk."""
        study, sources = self.study(), self.sources()
        terms = study.masks(len(sources), self.run_name())
        opened = open_sites(
            sources, seed=0, folder=self.folder / "sites", privacy=self.case.privacy, run=self.run_name(),
            preparation=study.preparation, masks=terms,
        )  # fmt: skip
        return next(site for site in opened if site.id == name)

    def run_name(self) -> str:
        from fedspan.run_folder import run_name

        return run_name(self.folder)

    def study(self) -> Study:
        """The case as a study."""
        return Study(n_components=2, solver=self.case.solver, secure=RULES, privacy=self.case.privacy)

    def sources(self) -> dict[str, Any]:
        """The sites' rows."""
        return {name: open_source(x) for name, x in rows_of().items()}

    def run(self) -> Any:
        """Run until the kill, open everything that died from disk, and finish."""
        try:
            return run(self.study(), self.sources(), engine=self, folder=self.folder)
        except CoordinatorDown:
            return run(self.study(), self.sources(), engine=self, folder=self.folder, resume=True)

    def charges(self) -> dict[str, list[tuple[int, str, float]]]:
        """What each ledger says."""
        places = {"coordinator": self.folder / LEDGER}
        places |= {name: self.folder / "sites" / name / LEDGER for name in rows_of()}
        found = {}
        for name, place in places.items():
            if place.exists():
                with Ledger(place) as ledger:
                    found[name] = [(c.round, c.step, c.cost) for c in ledger.charges()]
        return found


def check(killed: Fatal, whole: Fatal, expected: Any) -> None:
    """The same answer to the bit, the same charges, and no round unmasked in two ways."""
    result = killed.run()
    where = f"{killed.at} {killed.victim} {killed.after}"
    assert killed.fired, where
    assert bits(result) == bits(expected), where
    assert [r[:2] for r in traffic(result)] == [r[:2] for r in traffic(expected)], where
    assert killed.charges() == whole.charges(), where
    assert not list((killed.folder / "sites").glob("*/refused.jsonl")), where


@KILLED
@pytest.mark.parametrize("wired", [False, True], ids=["in-process", "wire"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_coordinator_killed_in_any_phase_ends_as_if_it_had_not_been(case, wired, after, tmp_path):
    whole = Fatal(tmp_path / "whole", case, wired=wired)
    expected = whole.run()
    for number in rounds_of(case, expected):
        for phase in PHASES:
            killed = Fatal(tmp_path / f"{number}-{phase}", case, (number, phase), after, wired=wired)
            check(killed, whole, expected)


@KILLED
@pytest.mark.parametrize("victim", ["site", "both"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_site_killed_in_any_phase_is_back_for_the_next_attempt(case, victim, after, tmp_path):
    whole = Fatal(tmp_path / "whole", case)
    expected = whole.run()
    for number in rounds_of(case, expected):
        for phase in PHASES:
            killed = Fatal(tmp_path / f"{number}-{phase}", case, (number, phase), after, victim)
            check(killed, whole, expected)


def rounds_of(case: Case, expected: Any) -> list[int]:
    """The last round, and one of set-up that asks for a bound first; under a policy, where all are alike, the last."""
    last = len(expected.history) - 1
    return [2, last] if case.privacy is None else [last]


@pytest.mark.soak
@KILLED
@pytest.mark.parametrize("victim", ["coordinator", "site", "both"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whoever_is_killed_in_any_phase_of_any_round(case, victim, after, tmp_path):
    whole = Fatal(tmp_path / "whole", case)
    expected = whole.run()
    for number, phase in sorted(set(whole.count) - {(0, "data.describe")}):
        check(Fatal(tmp_path / f"{number}-{phase}", case, (number, phase), after, victim), whole, expected)


def test_real_noise_is_charged_once_whoever_is_killed(tmp_path):
    """Without a seed no two runs are alike; a resumed one has the releases that its sites had made."""
    case = replace(SPLIT, privacy=promise("distributed", testing_seed=None))
    whole = Fatal(tmp_path / "whole", case)
    whole.run()
    for phase in ("masked", "release"):
        killed = Fatal(tmp_path / phase, case, (3, phase), True, "both")
        killed.run()
        assert killed.charges() == whole.charges()
        assert killed.count[3, "keys"] == 2  # fresh keys, and the same releases


def test_features_are_those_of_the_cases():
    assert {x.shape[1] for x in rows_of().values()} == {D}


def test_a_site_that_begins_again_from_a_lost_state_is_left_out_and_said_so():
    """FAPS keeps a state at the sites; one that lost its own shares no masks with the others, and spoils no sum."""
    case = next(case for case in MASKED if case.id == "faps")

    def engine(sites, seed):
        execute, lost = Wire(sites, seed), []

        def round_of(question):
            if (question.number, question.step.name) == (6, "secure.keys") and not lost:
                execute.sites[0].memory.versions = ()
                lost.append(question.number)
            return execute(question)

        return round_of

    with pytest.raises(CohortError, match=r"round 6: .*'accra': its masked reply is not like the others': .* state"):
        secured(shorter(case), engine=engine)
