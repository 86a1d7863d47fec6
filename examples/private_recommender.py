"""What do a recommender's users pay for a promise that nobody learns whether they were there?

A row is a user, and a user is who the promise is for. Users' interactions stay at their sites; the item subspace of the
degree-normalised matrix is found with (epsilon, delta)-differential privacy, and the degrees that it is normalised by
are a release like every other. Each site adds a share of the noise, and the coordinator sees masked sums only. Shen et
al. (2021) recommend by projection: user x gets scores x D^-1/2 V V' D^1/2.

With Gowalla in FEDSPAN_DATA it takes that (half a minute); else, or with --quick, made-up interactions.
"""

import math
import sys

import numpy as np
import scipy.sparse

from fedspan import FederatedTruncatedSVD
from fedspan.datasets import load
from fedspan.errors import DataError
from fedspan.privacy import GaussianPrivacy

QUICK = "--quick" in sys.argv
ITEMS, USERS, COMPONENTS, SITES, TOP = (120, 6000, 6, 4, 20) if QUICK else (1000, 24000, 16, 4, 20)
EPSILONS, RUNS = ((1.0, 8.0), 1) if QUICK else ((0.5, 1.0, 2.0, 4.0, 8.0), 3)
DELTA, MOST = 1e-6, 16
"""Where degrees are summed, what a user did more than 16 times counts for less."""


def made_up(rng):
    """Users of ten towns visit places by their popularity, mostly at home; a fifth of the visits is held out."""
    town_of_user, town_of_item = rng.integers(0, 10, USERS), rng.integers(0, 10, 2 * ITEMS)
    popular = 1.0 / np.arange(1, 2 * ITEMS + 1) ** 0.8
    visits = np.zeros((USERS, 2 * ITEMS))
    for town in range(10):
        chance = popular * np.where(town_of_item == town, 1.0, 0.05)
        users = np.flatnonzero(town_of_user == town)
        visits[users] = rng.poisson(10 * chance / chance.sum(), (len(users), 2 * ITEMS)) > 0
    held_out = rng.random(visits.shape) < 0.2
    return scipy.sparse.csr_array(visits * ~held_out), scipy.sparse.csr_array(visits * held_out)


def interactions(rng):
    """Return interactions to learn from and to test on, users x items, and what they are."""
    if not QUICK:
        try:
            found = load("gowalla", download=False)
            return scipy.sparse.csr_array(found.X, dtype=float), scipy.sparse.csr_array(found.X_test), "Gowalla"
        except DataError:
            pass
    return *made_up(rng), "made-up interactions"


def recall(scores, train, test):
    """Return recall@20: of what a user did later, how much is among the first 20 that were not done before."""
    some = np.flatnonzero(np.diff(test.indptr) * np.diff(train.indptr))
    found = []
    for users in np.array_split(some, len(some) // 2000 + 1):
        ranked = np.where(train[users].toarray() > 0, -np.inf, scores(train[users]))
        first = np.argpartition(-ranked, TOP, axis=1)[:, :TOP]
        later = test[users].toarray() > 0
        found.append(np.take_along_axis(later, first, axis=1).sum(axis=1) / later.sum(axis=1))
    return float(np.concatenate(found).mean())


def by_subspace(svd):
    """Score items by the projection of a user's row: x D^-1/2 V V' D^1/2."""
    return lambda rows: svd.inverse_transform(svd.transform(rows))  # the user's own degree changes no order


def by_degree(degrees):
    """Score items by their popularity, the same for all."""
    return lambda rows: np.broadcast_to(degrees, rows.shape)


def with_catalogue(train, test, rng):
    """Keep the items that a public panel likes best, and the users beside it; return the panel's rows too.

    A catalogue chosen by the users who are promised something would tell of them: the panel are others.
    """
    mixed = rng.permutation(train.shape[0])
    panel, users = mixed[: len(mixed) // 10], mixed[len(mixed) // 10 :]
    items = np.sort(np.argsort(-train[panel].sum(axis=0))[:ITEMS])
    return train[users][:, items], test[users][:, items], train[panel][:, items]


def private_model(epsilon, row_norm, sites):
    """Fit under a promise; the spent epsilon is never more than what was promised."""
    terms = GaussianPrivacy(epsilon, DELTA, row_norm=row_norm, raw_norm=math.sqrt(MOST), trust="distributed")
    svd = FederatedTruncatedSVD(COMPONENTS, solver="auto", normalise="degree", privacy=terms).fit(sites)
    assert svd.privacy_spent_["spent_epsilon"] <= epsilon
    return svd


def main():
    """Print recall against epsilon, then one guarantee and what it was spent on."""
    rng = np.random.default_rng(0)
    train, test, name = interactions(rng)
    train, test, panel = with_catalogue(train, test, rng)
    n = train.shape[0]
    sites = {f"site{i}": train[rows] for i, rows in enumerate(np.array_split(np.arange(n), SITES))}
    # Half of what a row over the roots of both degrees is long, by the panel's figures: below, little is lost.
    row_norm = 0.5 * math.sqrt(ITEMS / (n * panel.sum() / panel.shape[0]))
    print(f"{name}: {n:,} users at {SITES} sites, {ITEMS:,} items chosen by {panel.shape[0]:,} others")
    print(f"rows clipped to {row_norm:.3f}, raw ones to {math.sqrt(MOST):g}; {COMPONENTS} components\n")

    print(f"recall@{TOP}   subspace   popularity   degrees above the floor")
    plain = FederatedTruncatedSVD(COMPONENTS, normalise="degree").fit(sites)
    popular = recall(by_degree(plain.scale_**2), train, test)
    for epsilon in EPSILONS:
        found = []
        for _ in range(RUNS):
            svd = private_model(epsilon, row_norm, sites)
            degrees = svd.scale_**2  # noised, and then anybody's to use
            above = np.mean(degrees > degrees.min())
            found.append([recall(by_subspace(svd), train, test), recall(by_degree(degrees), train, test), above])
        subspace, noised, above = np.mean(found, axis=0)
        print(f"{epsilon:9g}   {subspace:8.3f}   {noised:10.3f}   {above:23.0%}")
    print(f"{'inf':>9}   {recall(by_subspace(plain), train, test):8.3f}   {popular:10.3f}   {'':>23}\n")
    assert subspace > popular  # at the largest epsilon

    print(f"the last one: {svd.privacy_spent_['words']}\n")
    print("release    share of mu^2    noise on each number of the sum")
    for release in svd.privacy_spent_["releases"]:
        print(f"{release['release']:10s} {release['share']:12.1%} {release['sigma']:15.3g}")


if __name__ == "__main__":
    main()
