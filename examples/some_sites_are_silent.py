"""What if only some sites answer each round?

FedPower's two sampling schemes, and "the first K replies", against full participation.
"""

from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedspan import Cohort, FederatedPCA
from fedspan.data import partition
from fedspan.metrics import projection_distance
from fedspan.solvers import FedPower

X = load_digits().data
sites = partition.split(X, partition.even(len(X), 20))
pooled = PCA(n_components=3).fit(X).components_.T
cohorts = {
    "all 20 sites": Cohort(),
    "scheme 1: 10 draws by size": Cohort(fraction=0.5, sample="by-size-with-replacement"),
    "scheme 2: 10 sites at random": Cohort(fraction=0.5),
    "the first 15 replies": Cohort(first=15),
}
for name, cohort in cohorts.items():
    solver = FedPower(rounds=15, tol=0, local_steps=2)
    pca = FederatedPCA(3, solver=solver, participation=cohort).fit(sites)
    print(f"{name:30s} projection distance {projection_distance(pca.components_.T, pooled):.3f}")
