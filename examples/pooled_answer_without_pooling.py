"""Is the federated answer the pooled one?

Splits scikit-learn's digits over ten uneven sites, fits without pooling, and compares with scikit-learn's PCA on the
pooled rows.
"""

from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedspan import FederatedPCA
from fedspan.data import partition
from fedspan.metrics import projection_distance

X = load_digits().data
sites = partition.split(X, partition.uneven(len(X), 10, seed=1))
federated = FederatedPCA(n_components=8).fit(sites)
pooled = PCA(n_components=8).fit(X)

distance = projection_distance(federated.components_.T, pooled.components_.T)
print(f"sites: {[len(rows) for rows in sites.values()]}")
print(f"rounds: {federated.n_rounds_}, and {federated.n_setup_rounds_} to align and centre")
print(f"sent by all sites together: {federated.bytes_up_ / 1e3:.0f} kB; the data itself: {X.nbytes / 1e3:.0f} kB")
print(f"projection distance to the pooled subspace: {distance:.1e}")
assert distance < 1e-8
