"""What the audit finds: FAPS's Figure 1 reduced (power is reconstructed before it converges); all on digits.

An error is ||guess - A_i'A_i||_F / ||A_i'A_i||_F of a site's centred rows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.report import figure, finish, need
from fedspan.cohort import Cohort
from fedspan.data import Preparation, open_source, partition
from fedspan.datasets import geometric_spectrum
from fedspan.metrics import kkt_violation
from fedspan.privacy.audit import Audit, audit
from fedspan.privacy.audit.sums import SumsAudit, audit_sums
from fedspan.privacy.audit.views import replayed
from fedspan.privacy.transcript import Transcript
from fedspan.run import Study, run
from fedspan.sites import open_sites
from fedspan.solvers import FAPS, NAMES, SOLVERS, BlockKrylov, Power, make

ENOUGH = 1e-5
BUDGET = 300


def recorded(solver: Any, sites: dict[str, np.ndarray], k: int, center: bool) -> tuple[Audit, int]:
    """Run a solver with its transcript kept, and audit it; return the solver's rounds too."""
    study = Study(n_components=k, solver=solver, preparation=Preparation(center=center))
    with tempfile.TemporaryDirectory() as folder:
        sources = {name: open_source(rows) for name, rows in sites.items()}
        result = run(study, sources, folder=Path(folder), record="transcript")
        transcript = Transcript.read(Path(folder))
    mean = np.vstack(list(sites.values())).mean(axis=0) if center else 0.0
    truth = {name: (rows - mean).T @ (rows - mean) for name, rows in sites.items()}
    return audit(transcript, truth, result.estimate.basis), result.rounds


def violations(sites: dict[str, np.ndarray], k: int) -> list[float]:
    """Return the power method's scaled KKT violation after 0, 1, 2, ... rounds."""
    gram = sum(rows.T @ rows for rows in sites.values())
    found: list[float] = []

    def watch(record: Any, estimate: np.ndarray | None) -> None:
        if estimate is not None and not record.setup:
            found.append(kkt_violation(estimate, gram @ estimate, float(np.trace(gram))))

    study = Study(n_components=k, solver=Power(rounds=BUDGET, tol=0.0), preparation=Preparation(center=False))
    run(study, {name: open_source(rows) for name, rows in sites.items()}, watchers=[watch])
    return found


def figure_one(title: str, rows: np.ndarray, k: int) -> None:
    """Power and FAPS at the setting of the paper's Figure 1 (n = 1000, m = 10,000, p = 100), a fifth of its size."""
    sites = partition.split(rows, partition.even(len(rows), 4))
    first = min(sites)
    power, _ = recorded(Power(rounds=40, tol=0.0), sites, k, center=False)
    curve = power.sites[first].curves["least squares, as published"]
    errors = enumerate(curve.errors, start=1)
    reached = next((at for at, error in errors if error <= ENOUGH), BUDGET)
    trajectory = violations(sites, k)
    converged = next((at for at, violation in enumerate(trajectory) if violation <= ENOUGH), BUDGET)
    figure(f"{title}: power, its own rounds to KKT 1e-5 (at most {BUDGET} tried)", converged)
    figure(f"{title}: power, rounds to reconstruct site 1 to 1e-5", reached, converged - 1)
    figure(f"{title}: power, its scaled KKT by then", trajectory[min(reached, BUDGET - 1)])
    least_errors(f"{title}: power, 40 rounds", power, first)
    faps, rounds = recorded(FAPS(rounds=60, tol=0.0), sites, k, center=False)
    least_errors(f"{title}: FAPS, {rounds} rounds", faps, first)
    sys.stdout.write(f"{faps.sites[first].verdict}\n")


def least_errors(title: str, found: Audit, site: str) -> None:
    """Print every attack's least error."""
    for attack, curve in found.sites[site].curves.items():
        figure(f"{title}, {attack}", curve.least)


def fast_decay() -> None:
    """At n = 300 the small eigenvalues of (23) drop out of the iterates before rounding lets anyone see them."""
    rows = geometric_spectrum(3000, 300, xi=1.01)
    sites = partition.split(rows, partition.even(len(rows), 4))
    found, _ = recorded(Power(rounds=40, tol=0.0), sites, 30, center=False)
    least_errors("(23), n = 300, m = 3000, p = 30: power, 40 rounds", found, min(sites))


def every_solver() -> None:
    """The demo's digits: each solver at its defaults, smallest and largest error of ten sites."""
    images = load_digits().data
    sites = partition.split(images, partition.uneven(len(images), 10, least=20))
    sys.stdout.write("\ndigits, 10 sites, 10 components\n")
    for name in SOLVERS:
        found, rounds = recorded(make(name), sites, 10, center=True)
        columns = []
        for informed in (False, True):
            least = [
                min(curve.least for attack, curve in site.curves.items() if (attack == "informed") is informed)
                for site in found.sites.values()
                if any((attack == "informed") is informed for attack in site.curves)
            ]
            columns.append(f"{min(least):.1e} to {max(least):.1e}")
        learnt = {site.learnt_numbers for site in found.sites.values()}
        sys.stdout.write(
            f"{name:<11} rounds {rounds:>3}   taken for A_i'A_i Z {columns[0]}   informed {columns[1]}   "
            f"numbers {min(learnt):,} to {max(learnt):,} of {next(iter(found.sites.values())).numbers:,}\n"
        )
        sys.stdout.flush()
        if name == "krylov" and found.external is not None:
            sys.stdout.write(f"{found.external.verdict}\n")


def recorded_sums(study: Study, sites: dict[str, np.ndarray]) -> tuple[Transcript, Transcript, dict[str, np.ndarray]]:
    """Run a study of secure sums; return its transcript, that of the same rounds without masks, and the truth."""
    sources = {name: open_source(rows) for name, rows in sites.items()}
    with tempfile.TemporaryDirectory() as folder:
        run(study, sources, folder=Path(folder), record="transcript")
        transcript = Transcript.read(Path(folder))
    mean = np.vstack(list(sites.values())).mean(axis=0)
    truth = {name: (rows - mean).T @ (rows - mean) for name, rows in sites.items()}
    return transcript, replayed(transcript, open_sites(sources, seed=0)), truth


def secure_sums() -> None:
    """The digits again, under secure sums, with none, half and all but one of the sites colluding.

    Errors of single sites are of the best multiple of a guess. The last line has other sites in every sum.
    """
    images = load_digits().data
    sites = partition.split(images, partition.even(len(images), 10))
    sys.stdout.write("\ndigits, 10 even sites, 10 components, secure sums: errors for single sites\n")
    columns = "{:<18} {:>9} {:>8} {:>15} {:>15} {:>20} {:>15} {:>21}\n"
    titles = ("solver", "colluding", "the sum", "masked replies", "random numbers", "from the sums")
    sys.stdout.write(columns.format(*titles, "from the others", "without masks"))
    gains: list[float] = []
    for name in ("covariance", "krylov", "power", "fedpower", "faps"):
        transcript, plain, truth = recorded_sums(Study(n_components=10, solver=make(name), secure=True), sites)
        for count in (0, 5, 9):
            found = audit_sums(transcript, truth, unmasked=plain, colluding=sorted(sites)[:count])
            line_of(columns, name, found)
            if count < 9:
                gains += [site.random - site.masked for site in found.sites.values()]
    study = Study(n_components=10, solver=Power(rounds=40, tol=0.0), secure=True, cohort=Cohort(first=9))
    transcript, plain, truth = recorded_sums(study, sites)
    line_of(columns, "power, 9 in a sum", audit_sums(transcript, truth, unmasked=plain))
    figure("by how much masked replies guess a site better than random numbers do, at most", max(gains), 0.02)


def line_of(columns: str, name: str, found: SumsAudit) -> None:
    """Print one line: least and largest error of the sites that do not collude."""
    whole = found.whole if found.rest is None else found.rest
    rows = found.table()
    cells = []
    for column in ("masked", "random", "guess", "others", "plain"):
        errors = [row[column] for row in rows if row[column] is not None]
        cells.append(f"{min(errors):.3g} to {max(errors):.3g}" if errors else "")
    sys.stdout.write(columns.format(name, len(found.colluding), f"{whole.strongest[1].least:.1g}", *cells))
    sys.stdout.flush()


def images() -> None:
    """MNIST: 784 features, so that most of the matrix is never asked about."""
    X = need("mnist").X / 255.0
    sites = partition.split(X, partition.even(len(X), 16))
    for solver in (Power(), BlockKrylov(oversampling=0), FAPS()):
        found, rounds = recorded(solver, sites, 5, center=True)
        least = [min(curve.least for curve in site.curves.values()) for site in found.sites.values()]
        name = f"MNIST, 16 sites, k = r = 5: {NAMES[type(solver)]}, {rounds} rounds"
        figure(f"{name}, strongest attack, least of all sites", min(least))
        figure(f"{name}, strongest attack, largest of all sites", max(least))


def main() -> None:
    """Figure 1, then the digits, then MNIST."""
    rng = np.random.default_rng(0)
    figure_one("Gaussian, n = 200, m = 2000, p = 20", rng.standard_normal((2000, 200)), 20)
    figure_one("(23), n = 200, m = 2000, p = 20", geometric_spectrum(2000, 200, xi=1.01), 20)
    fast_decay()
    every_solver()
    secure_sums()
    images()
    finish()


if __name__ == "__main__":
    main()
