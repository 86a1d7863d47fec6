"""Sites see different digits at different speeds. What does a shared representation with heads of their own bring?

Twenty sites hold pictures of three digits each. One model for all is compared with heads of the sites' own on one
representation; then with doubling, which begins with the fastest few sites, in virtual time; then a site that was
not there joins. Needs PyTorch: pip install 'fedspan[torch]'.
"""

import numpy as np
from sklearn.datasets import load_digits

from fedspan import FederatedRepresentation
from fedspan.engines import FixedSpeeds, VirtualTime
from fedspan.learners import FedAvg, FedRep
from fedspan.solvers import Doubling

MODEL = {"kind": "mlp", "hidden": [64, 16]}
ENGINE = VirtualTime(speeds=FixedSpeeds(mean=1.0), communication=0.1)
SITES, ROUNDS = 21, 30

rng = np.random.default_rng(0)
digits = load_digits()
pixels = (digits.data / 16).astype(np.float32)


def site(rows: int = 48, test: int = 24) -> tuple[np.ndarray, ...]:
    """Draw the rows of a site: three digits of the ten, as many of each as they come."""
    mine = np.flatnonzero(np.isin(digits.target, rng.choice(10, 3, replace=False)))
    drawn = rng.choice(mine, rows + test, replace=False)
    learnt, held = drawn[:rows], drawn[rows:]
    return pixels[learnt], digits.target[learnt], pixels[held], digits.target[held]


def show(name: str, model: FederatedRepresentation, scores: dict) -> None:
    """Print a line of the table."""
    clock = f"{model.clock_:9.1f}"
    print(f"{name:28s} {scores['worst']:6.1%} {scores['median']:7.1%} {scores['best']:7.1%} {clock} s")


def main() -> None:
    """Print the table, then what becomes of a new site."""
    sites = {f"site{i:02d}": site() for i in range(SITES)}
    X, y, X_test, y_test = sites.pop("site20")  # it will come later
    learner = FedRep(rounds=ROUNDS)
    learners = {
        "one model for all (FedAvg)": FedAvg(rounds=ROUNDS),
        "heads of their own (FedRep)": learner,
        "begun with the fastest": Doubling(stage=FedRep(rounds=10), n0=2, rounds=8),
    }
    print(f"{'test accuracy of a site':28s} {'worst':>6s} {'median':>7s} {'best':>7s} {'virtual time':>10s}")
    models = {}
    for name, one in learners.items():
        models[name] = FederatedRepresentation(model=MODEL, learner=one, engine=ENGINE).fit(sites)
        show(name, models[name], models[name].fairness_)
    own = models["heads of their own (FedRep)"]
    assert own.fairness_["median"] > models["one model for all (FedAvg)"].fairness_["median"]

    print("\nthe sites that are predicted worst:")
    for name in own.site_scores_.ranked[:3]:
        print(f"  {name}: {own.site_scores_.shown(name)} of {own.site_scores_[name]['rows']} test rows")

    own.join("newcomer", X[:24], y[:24])
    joined = own.score("newcomer", X_test, y_test)
    others = np.mean([own.score(name, X_test, y_test) for name in sites])
    print(f"\na new site, a head learnt from 24 rows of its own: {joined:.1%} (with the others' heads: {others:.1%})")
    assert joined > others


if __name__ == "__main__":
    main()
