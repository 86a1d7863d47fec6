"""What does privacy cost? The same private PCA for several epsilons, and for the three ways to place the noise.

Five sites hold rows of norm at most 1. The figure is the variance that the private components capture, as a share of
what the exact ones capture; `fedspan calibrate` makes such a table for a study file without reading its data.
"""

import numpy as np

from fedspan import FederatedPCA
from fedspan.privacy import GaussianPrivacy

FEATURES, K = 30, 4
EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0)
TRUSTS = ("local", "distributed", "central")

rng = np.random.default_rng(0)
turn = np.linalg.qr(rng.standard_normal((FEATURES, FEATURES)))[0]
rows = rng.standard_normal((20_000, FEATURES)) / np.sqrt(np.arange(1, FEATURES + 1)) @ turn
rows *= 0.7 / np.sqrt(np.mean(np.sum(rows**2, axis=1)))
rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)  # the bound that row_norm states
sites = dict(zip(["berlin", "oslo", "porto", "riga", "turin"], np.array_split(rows, 5), strict=True))


def captured(model: FederatedPCA) -> float:
    """Return the sum of squares along the components, of the rows about their true mean: for scoring only."""
    return float(np.linalg.norm((rows - rows.mean(axis=0)) @ model.components_.T) ** 2)


def main() -> None:
    """Print the table, then one guarantee in full."""
    best = captured(FederatedPCA(K).fit(sites))
    shares: dict[tuple[float, str], float] = {}
    print("variance captured, of what the exact components capture")
    print("epsilon " + "".join(f"{trust:>13s}" for trust in TRUSTS))
    for epsilon in EPSILONS:
        for trust in TRUSTS:
            terms = GaussianPrivacy(epsilon, 1e-6, row_norm=1.0, trust=trust)
            model = FederatedPCA(K, solver="auto", privacy=terms).fit(sites)
            shares[epsilon, trust] = captured(model) / best
            assert model.privacy_spent_["label"] == "certified"
            assert model.privacy_spent_["spent_epsilon"] <= epsilon
        print(f"{epsilon:7g} " + "".join(f"{shares[epsilon, trust]:13.1%}" for trust in TRUSTS))

    print(f"\nthe last one: {model.privacy_spent_['words']}\n")
    print("release    step              share of mu^2    noise on each number of the sum")
    for release in model.privacy_spent_["releases"]:
        name, step, share = release["release"], release["step"], release["share"]
        print(f"{name:10s} {step:18s} {share:12.1%} {release['sigma']:15.3g}")
    assert shares[3.0, "central"] > 0.99


if __name__ == "__main__":
    main()
