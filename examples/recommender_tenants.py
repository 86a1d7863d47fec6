"""Can tenants of a recommender share item factors without sharing interactions?

Each tenant has its own users and sees some of the items; the item vocabulary is aligned by name, interactions are
normalised by both degrees, and nothing is ever made dense.
"""

import numpy as np

from fedspan import FederatedTruncatedSVD
from fedspan.data import from_triples

rng = np.random.default_rng(0)
tenants = {}
for tenant in ("north", "south", "west"):
    users = rng.integers(0, 200, 4000)
    items = [f"item{int(i)}" for i in rng.zipf(1.4, 4000) % 300]
    tenants[tenant] = from_triples(users, items)

svd = FederatedTruncatedSVD(8, columns="union-zero", normalise="degree").fit(tenants)
print(f"{len(svd.feature_names_in_)} items over {len(tenants)} tenants, {svd.n_rounds_} rounds")
print(f"leading singular values: {np.round(svd.singular_values_[:4], 4)}")
assert svd.singular_values_[0] <= 1 + 1e-9  # a degree-normalised matrix has norm 1
