"""Data at a site (being written)."""
from fedspan.data import partition
from fedspan.data.arrays import ArraySource, SparseSource
from fedspan.data.preprocess import Facts, Preparation
from fedspan.data.source import Source, SymmetricSource
def open_source(data, *, drop=(), weights=None, site_weight=1.0, **_):
    import scipy.sparse
    s = data if isinstance(data, Source) else SparseSource(data) if scipy.sparse.issparse(data) else ArraySource(data)
    s.weights, s.site_weight = weights, site_weight
    return s
