"""diffprivlib's PCA on one data set at one epsilon: components and seconds per seed, in diffprivlib's own environment.

Run by :func:`benchmarks.rivals.diffprivlib_components`; alone, from the repository's root and with the Python that
``diffprivlib.txt`` describes::

    python -m benchmarks.rivals.diffprivlib_pca wine_red 1 2 --data FOLDER --out answer.npz --seeds 0,1,2

**Protocol, the same for both sides.** Data: :func:`benchmarks.rivals.prepared`, row by row and by public constants, so
at no privacy cost; both sides are told the same norm bound (1 for mnist and a9a, sqrt(11) for wine_red). k = 5
(wine_red: 2), epsilon 0.1 and 1, seeds 0 to 9. Uncentred: diffprivlib's ``centered=True``, which takes the rows as
they are and spends nothing on a mean; the measure is of X'X. Centred: each side pays for its own mean out of epsilon,
and the measure is of the Gram matrix about the true mean. Measured by the caller: trace(V G V') / (sum of G's k
largest eigenvalues).

**What diffprivlib 0.6.6 does** (``models/pca.py``, ``models/utils.py: covariance_eig``, ``mechanisms/bingham.py``).
Pure epsilon-DP, delta = 0, n public; it composes the budgets below by adding them. Neighbours: one row replaced.
Centred: half of epsilon on the mean, in d equal shares, by Laplace noise of scale (high - low) / n / share per column,
cut to the bounds; the rows less that mean are clipped to the norm bound; the other half goes on the spectrum.
Uncentred: all of it goes there. The spectrum's budget has k + 1 equal shares (k < d): one for all d eigenvalues
(Laplace on [0, inf), sensitivity 2), and one per vector, drawn in turn from the Bingham law exp(share / 4 * u'Cu),
C = X'X / norm^2, on the complement of those before. Released: mean, eigenvalues, components. ``random_state`` drives
all the noise: with a known seed nothing is private, here as in any benchmark.

**Two samplers.** ``shipped`` is diffprivlib untouched. Its ``Bingham.randomise`` proposes u from the angular central
Gaussian law, density (u'Wu)^(-d/2), and accepts with probability f / M / (u'Wu)^(d/2); rejection needs f / M *
(u'Wu)^(d/2). So what it draws is f(u) (u'Wu)^(-d), not the Bingham law f, and it accepts so seldom that it does not
end on data with a clear spectrum; for d = 784 its constant M overflows. ``mended`` changes that acceptance and nothing
else in law: its right value, in logarithms, and the same proposals drawn by one eigendecomposition instead of an SVD
per trial. Its answers are those of the mechanism diffprivlib documents, whose draws are private at half their share at
least; those of ``shipped``, where it ends, come from a narrower law that its share does not cover for every spectrum.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from pathlib import Path

import numpy as np

from benchmarks.rivals import ENTRY_BOUNDS, prepared


def mended(self, value):
    """Draw from the Bingham law that ``diffprivlib.mechanisms.Bingham`` documents (Kent, Ganeiber and Mardia)."""
    self._check_all(value)
    eigenvalues, vectors = np.linalg.eigh(value)
    d = len(value)
    if d == 1:
        return np.ones((1, 1))
    penalties = self.epsilon * (eigenvalues[-1] - eigenvalues) / 4.0 / self.sensitivity
    low, high = 1.0, float(d)
    for _ in range(200):  # b with sum 1 / (b + 2 penalty) = 1
        b = (low + high) / 2.0
        low, high = (b, high) if (1.0 / (b + 2.0 * penalties)).sum() > 1.0 else (low, b)
    shape = 1.0 + 2.0 * penalties / b
    log_bound = -(d - b) / 2.0 + d / 2.0 * math.log(d / b)
    while True:
        u = self._rng.standard_normal(d) / np.sqrt(shape)
        u /= np.linalg.norm(u)
        log_accept = -(u * u) @ penalties - log_bound + d / 2.0 * math.log((u * u) @ shape)
        if math.log(1.0 - self._rng.random()) <= log_accept:
            return vectors @ u


def main() -> None:
    """Fit once per seed and keep the components and the seconds."""
    parser = argparse.ArgumentParser(description="diffprivlib's PCA, once per seed")
    parser.add_argument("name", choices=sorted(ENTRY_BOUNDS))
    parser.add_argument("epsilon", type=float)
    parser.add_argument("k", type=int)
    parser.add_argument("--centred", action="store_true", help="pay for a mean and centre by it")
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9", help="comma between")
    parser.add_argument("--data", type=Path, required=True, help="folder of the .npz files")
    parser.add_argument("--out", type=Path, required=True, help=".npz to write")
    parser.add_argument("--sampler", choices=("shipped", "mended"), default="shipped")
    asked = parser.parse_args()

    from diffprivlib.mechanisms import Bingham
    from diffprivlib.models import PCA

    if asked.sampler == "mended":
        Bingham.randomise = mended
    X, norm = prepared(asked.name, asked.data)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    components, seconds = [], []
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for seed in seeds:
            started = time.perf_counter()
            model = PCA(
                asked.k,
                epsilon=asked.epsilon,
                data_norm=norm,
                centered=not asked.centred,  # its word for: centred before, so spend nothing on it
                bounds=ENTRY_BOUNDS[asked.name],
                random_state=seed,
            ).fit(X)
            seconds.append(time.perf_counter() - started)
            components.append(model.components_)
    said = sorted({f"{w.category.__name__}: {w.message}" for w in given})
    with open(asked.out, "wb") as file:
        np.savez(
            file, components=np.array(components), seconds=seconds, seeds=seeds, warnings=np.array(said, dtype=str)
        )


if __name__ == "__main__":
    main()
