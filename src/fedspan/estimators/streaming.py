"""`StreamingPCA`: principal components of rows that are seen once, with scikit-learn's manners."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted, validate_data

from fedspan.data import Source
from fedspan.data.arrays import whole_entries
from fedspan.encoding import Array, decode, encode
from fedspan.errors import ConfigurationError, DataError
from fedspan.estimators.decomposition import Decomposition, carry_names, copy_attributes
from fedspan.estimators.gaps import Gaps
from fedspan.estimators.streamed_rows import blocks_of, check_size, checked_source, checked_weights
from fedspan.linalg import Summary, canonical_signs, orth_against
from fedspan.solvers.settings import finite, whole
from fedspan.stream import Stream, StreamSettings, check_settings

_FIGURES = (
    "components_", "singular_values_", "explained_variance_", "explained_variance_ratio_", "noise_variance_", "mean_",
    "n_components_", "n_samples_seen_", "n_blocks_", "mass_", "drift_", "drift_loss_",
)  # fmt: skip


class StreamingPCA(Decomposition):
    """Principal components of a stream of rows, in memory for ``block_size`` rows and about 2 k + 10 components.

    Rows are folded in blocks of ``block_size``, however they come; what is asked for in between counts the rows that
    wait for their block. Summaries of several streams merge in any order (`merge`).

    Parameters
    ----------
    n_components
        How many: an integer, a fraction of the variance in (0, 1), or ``"auto"``: the rank then follows the stream so
        that the last singular value's share of the sum of all stays within ``energy``.
    forgetting
        What earlier rows are multiplied by at each block; 1 forgets nothing. A row j blocks old weighs
        ``forgetting ** (2 j)`` of a new one, in the mean as in the variance.
    energy
        The band (alpha, beta) of ``"auto"``; the paper advises alpha / beta <= 0.2.
    center
        Subtract the stream's (weighted, exact) mean.
    block_size
        Rows folded at once: larger ones cost less a row, and memory.
    oversampling
        How many components more are kept inside (None: k + 10): their truncation is what the answer's error is.
    window
        Blocks in a window; ``drift_`` compares the subspaces of the last two windows' own rows.
    missing
        What to do with NaN: ``"error"`` refuses the rows, ``"mean"`` fills in the mean of the values so far, ``"skip"``
        leaves out rows that have any.
    whiten
        Scale scores to unit variance.
    random_state
        The seed of the directions that blocks are probed in.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, noise_variance_
        As of scikit-learn's PCA.
    n_components_, n_samples_seen_, n_features_in_
        The rank now, rows seen (those skipped not counted), columns.
    mass_
        The sum of the rows' weights, after forgetting.
    n_blocks_, n_skipped_
        Blocks folded, rows left out for their gaps.
    drift_, drift_loss_
        The sine of the largest angle between the last two windows' subspaces, and the share of variance that the older
        one would have lost in the newer window; None where there are not two that vary. Where two components have
        nearly equal variance they turn into each other and the angle is large without any change; the loss is small.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> pca = StreamingPCA(n_components=2)
    >>> for _ in range(5):
    ...     pca = pca.partial_fit(rng.standard_normal((300, 6)) * [9, 5, 1, 1, 1, 1])
    >>> pca.n_samples_seen_, pca.components_.shape
    (1500, (2, 6))
    >>> other = StreamingPCA(n_components=2).fit(rng.standard_normal((400, 6)))
    >>> pca.merge(other).n_samples_seen_
    1900
    """

    scale_ = None
    _stream: Stream
    _gaps_filled: Gaps
    _axes_before: tuple[Array, Array] | None
    """Components and mean as they were before the last `partial_fit`, if somebody asked for them."""

    def __init__(
        self,
        n_components: int | float | str = 10,
        *,
        forgetting: float = 1.0,
        energy: tuple[float, float] = (0.01, 0.1),
        center: bool = True,
        block_size: int = 500,
        oversampling: int | None = None,
        window: int = 10,
        missing: str = "error",
        whiten: bool = False,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.forgetting = forgetting
        self.energy = energy
        self.center = center
        self.block_size = block_size
        self.oversampling = oversampling
        self.window = window
        self.missing = missing
        self.whiten = whiten
        self.random_state = random_state

    # ---- rows in ---------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Forget everything, then take these rows: an array, a frame, a sparse matrix, a Source or a path."""
        for name in ("_stream", "_gaps_filled", "_axes_before", "feature_names_in_"):
            self.__dict__.pop(name, None)
        if sample_weight is not None and not np.any(np.asarray(sample_weight, dtype=float)):
            raise DataError("all of sample_weight is zero, so there is nothing to fit; give some rows a weight")
        return self.partial_fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Take more rows. Rows that cannot be used are refused whole, and the stream is as it was.

        So are parameters that were changed since the first rows (`fit` begins anew).

        Parameters
        ----------
        X
            An array, a frame, a sparse matrix (never made dense), or a Source or path, which is read in blocks.
        y
            Ignored.
        sample_weight
            A weight for each row, not negative: a row of weight 2 counts as two.
        """
        settings = self._settings()
        first = not hasattr(self, "_stream")
        if isinstance(X, Source | str | Path):
            if sample_weight is not None:
                raise ConfigurationError("sample_weight belongs to rows in memory; give open_source the weights")
            source = checked_source(X, None if first else self)
            self._take(blocks_of(source), source.shape[1], settings)
            if first and source.columns is not None:
                self.feature_names_in_ = np.array(source.columns, dtype=object)
            return self
        X = validate_data(
            self, X, dtype=[np.float64, np.float32], accept_sparse="csr", reset=first, ensure_min_samples=1,
            **self._gaps(),
        )  # fmt: skip
        X = whole_entries(X) if scipy.sparse.issparse(X) else X
        self._take([(X, checked_weights(sample_weight, X.shape[0]))], X.shape[1], settings)
        return self

    def _take(self, blocks: Iterable[tuple[Any, Array | None]], d: int, settings: StreamSettings) -> None:
        """Take all blocks or, where one cannot be used, none: they go to a copy, which then replaces the stream."""
        before = None
        if hasattr(self, "_stream"):
            began = _terms(self._stream.settings, self._gaps_filled.missing)
            _check_same(began, _terms(settings, self.missing))
            stream, gaps = self._stream.copy(), copy.copy(self._gaps_filled)
            if self._stream.asked and self._has_rank():
                before = self.components_, self.mean_
        else:
            stream, gaps = _new_stream(d, settings), Gaps(d, self.missing)
        for X, weights in blocks:
            check_size(X, weights)
            stream.push(*gaps.met(X, weights))
        self._stream, self._gaps_filled, self._axes_before = stream, gaps, before
        self.n_features_in_ = d

    def partial_fit_transform(self, X: Any, sample_weight: Any = None) -> Array:
        """Take more rows and return their scores in the subspace as it is now; `carry` brings earlier ones along."""
        return self.partial_fit(X, sample_weight=sample_weight).transform(X)

    def carry(self, scores: Array) -> Array:
        """Return scores given before the last `partial_fit`, as near as can be in the subspace of now.

        So the scores of a whole stream are kept, in k numbers a row, while the subspace turns and the mean moves.
        """
        check_is_fitted(self)
        scores = np.asarray(scores, dtype=float)
        if self._axes_before is None:
            raise DataError("there is no subspace before the last partial_fit, so no scores were given in it")
        axes, mean = self._axes_before
        if scores.ndim != 2 or scores.shape[1] != len(axes):
            raise DataError(f"scores of the subspace before have {len(axes)} columns, got shape {scores.shape}")
        if self.whiten:
            raise ConfigurationError("whitened scores are not carried: their scale changed; set whiten=False")
        now = self.components_.T
        return scores @ (axes @ now) + (mean - self.mean_) @ now  # type: ignore[no-any-return]

    def flush(self) -> Self:
        """Fold the rows that wait for their block to be full as a block of their own."""
        check_is_fitted(self)
        self._stream.flush()
        return self

    def merge(self, other: StreamingPCA) -> Self:
        """Take what another stream has seen, as far as its summary holds it; the other one stays as it is."""
        check_is_fitted(self)
        if not isinstance(other, StreamingPCA):
            raise ConfigurationError(f"only a StreamingPCA can be merged, got {type(other).__name__}")
        check_is_fitted(other)
        mine, theirs = (getattr(m, "feature_names_in_", None) for m in (self, other))
        if other.n_features_in_ != self.n_features_in_:
            raise DataError(
                f"the other stream has {other.n_features_in_} columns, this one {self.n_features_in_}; merge streams "
                f"of the same columns"
            )
        if mine is not None and theirs is not None and list(mine) != list(theirs):
            raise DataError(f"the other stream's columns are {list(theirs)[:5]}, this one's {list(mine)[:5]}")
        if other.center != self.center:
            raise ConfigurationError(f"the other stream has center={other.center}, this one {self.center}")
        seen = other.summary() if other.center else None
        self._stream.merge(other._stream)
        self._gaps_filled.add(other._gaps_filled, seen)
        self._axes_before = None
        return self

    def summary(self) -> Summary:
        """Return all that is known of the rows, those waiting too: what a site publishes and a coordinator merges."""
        check_is_fitted(self)
        return self._stream.now()

    @classmethod
    def from_summary(cls, summary: Summary, columns: Any = None, **parameters: Any) -> Self:
        """Return a stream that goes on from a summary."""
        model = cls(**parameters)
        d = len(summary.mean)
        if columns is not None and len(columns) != d:
            raise DataError(f"{len(columns)} names were given for the {d} columns of the summary; give one for each")
        model._stream = _new_stream(d, model._settings())
        model._stream.start_from(summary)
        model._gaps_filled, model._axes_before = Gaps(d, model.missing, summary if model.center else None), None
        model.n_features_in_ = d
        if columns is not None:
            model.feature_names_in_ = np.array(columns, dtype=object)
        return model

    # ---- figures out -----------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_stream")

    def _known(self) -> Stream:
        if not hasattr(self, "_stream"):
            raise NotFittedError("this StreamingPCA has seen no rows yet; call fit or partial_fit first")
        return self._stream

    def _has_rank(self) -> bool:
        return self._stream.now().rows >= self._stream.rank_now()

    @property
    def n_components_(self) -> int:
        """The rank now."""
        return self._known().rank_now()

    @property
    def n_samples_seen_(self) -> int:
        """Rows seen."""
        return self._known().now().rows

    @property
    def n_skipped_(self) -> int:
        """Rows left out for their gaps."""
        self._known()
        return self._gaps_filled.skipped

    @property
    def n_blocks_(self) -> int:
        """Blocks folded."""
        return self._known().blocks

    @property
    def mass_(self) -> float:
        """The sum of the rows' weights, after forgetting."""
        return self._known().now().mass

    @property
    def drift_(self) -> float | None:
        """The sine of the largest angle between the last two windows' subspaces."""
        return self._known().drift

    @property
    def drift_loss_(self) -> float | None:
        """The share of the last window's variance that the subspace of the window before would have lost."""
        return self._known().drift_loss

    @property
    def mean_(self) -> Array:
        """The rows' mean; zero where they are not centred."""
        return self._known().now().mean

    @property
    def singular_values_(self) -> Array:
        """Of the weighted, centred rows; zero where the rows have fewer directions than there are components."""
        k, values = self._enough_rows(), self._known().now().values
        return np.append(values[:k], np.zeros(max(k - len(values), 0)))

    @property
    def components_(self) -> Array:
        """The k x d basis, signs canonical."""
        k, basis = self._enough_rows(), self._known().now().basis
        if basis.shape[1] < k:  # the rows have fewer directions: the rest is any others, of value zero
            others = np.random.default_rng(self.random_state).standard_normal((len(basis), k))
            basis = np.hstack([basis, orth_against(others, basis)[0]])
        return np.ascontiguousarray(canonical_signs(basis[:, :k]).T)

    @property
    def explained_variance_(self) -> Array:
        """Of each component, over the rows' weight less one."""
        return self.singular_values_**2 / self._freedom()

    @property
    def explained_variance_ratio_(self) -> Array:
        """Each component's share of the total variance, which is kept exactly and apart."""
        total, squares = self._known().now().total, self.singular_values_**2
        return squares / total if total > 0 else 0 * squares

    @property
    def noise_variance_(self) -> float:
        """The mean variance of what the components leave."""
        summary = self._known().now()
        left = min(self._known().d, summary.rows) - self.n_components_
        rest = max(summary.total - float(np.sum(self.singular_values_**2)), 0.0)
        return rest / self._freedom() / left if left > 0 else 0.0

    @property
    def fill_(self) -> Array | None:
        """What gaps are filled with in `transform`; None where they are refused."""
        self._known()
        return self._gaps_filled.fill

    def _freedom(self) -> float:
        return max(self._known().now().mass - 1.0, 1.0)

    def _enough_rows(self) -> int:
        stream = self._known()
        k, rows = stream.rank_now(), stream.now().rows
        if rows < k:
            raise DataError(
                f"n_components = {k} is more than the {rows} rows seen so far, which are kept; give more rows, or ask "
                f"for fewer components"
            )
        return k

    def _offset(self) -> Array | None:
        return self.mean_

    def _spread(self) -> Array | float:
        if not self.whiten:
            return 1.0
        spread = np.sqrt(self.explained_variance_)
        return np.where(spread > 0, spread, 1.0)

    def to_sklearn(self) -> Any:
        """Return a fitted scikit-learn `PCA`."""
        check_is_fitted(self)
        pca = PCA(n_components=self.n_components_, whiten=self.whiten)
        copy_attributes(
            self,
            pca,
            "components_ explained_variance_ explained_variance_ratio_ singular_values_ n_components_ noise_variance_ "
            "mean_ n_features_in_",
        )
        pca.n_samples_ = self.n_samples_seen_
        return carry_names(self, pca)

    # ---- settings, files -------------------------------------------------------------------------------

    def _settings(self) -> StreamSettings:
        """Return the parameters as a stream takes them, checked."""
        band: Any = self.energy
        if not isinstance(band, tuple | list) or len(band) != 2:
            raise ConfigurationError(f"energy is a band (alpha, beta) of two numbers, got {band!r}")
        settings = StreamSettings(
            n_components=_rank_wanted(self.n_components), block_size=whole("block_size", self.block_size),
            window=whole("window", self.window),
            oversampling=None if self.oversampling is None else whole("oversampling", self.oversampling),
            forgetting=finite("forgetting", self.forgetting), center=bool(self.center),
            energy=(finite("energy", band[0]), finite("energy", band[1])),
            seed=whole("random_state", self.random_state),
        )  # fmt: skip
        check_settings(settings)
        return settings

    @property
    def _fills(self) -> bool:
        return self.missing != "error"  # rows are left out of the fit where they are not filled, and scored NaN

    def _kept(self) -> dict[str, Any]:
        kept = super()._kept()
        if self._has_rank():  # for whoever reads the file; what goes on is the stream below
            kept |= {name: getattr(self, name) for name in _FIGURES}
        before = None if self._axes_before is None else list(self._axes_before)
        state = {"stream": self._stream.as_plain(), "gaps": self._gaps_filled.as_plain(), "before": before}
        return {**kept, "stream_": np.frombuffer(encode(state), dtype=np.uint8)}

    def _restore(self, fitted: dict[str, Any]) -> None:
        state = decode(fitted["stream_"].tobytes())
        self._stream, self._gaps_filled = Stream.from_plain(state["stream"]), Gaps.from_plain(state["gaps"])
        self._axes_before = None if state["before"] is None else tuple(state["before"])
        self._stream.now()  # as `save` asked for it: the scores given before it are carried on
        super()._restore({n: v for n, v in fitted.items() if n not in (*_FIGURES, "stream_")})


def _rank_wanted(given: Any) -> int | float | str:
    if isinstance(given, str):
        return given
    return whole("n_components", given) if isinstance(given, Integral) else finite("n_components", given)


def _check_same(began: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse parameters that were changed under way: what was folded by the others cannot be taken back."""
    for name, value in began.items():
        if now[name] != value:
            raise ConfigurationError(
                f"the stream began with {name} = {value!r}, and it is {now[name]!r} now; set it back, or call fit to "
                f"begin anew"
            )


def _terms(settings: StreamSettings, missing: str) -> dict[str, Any]:
    """Return what a stream began with, by the parameters' names."""
    own = {("random_state" if f.name == "seed" else f.name): getattr(settings, f.name) for f in fields(settings)}
    return {**own, "missing": missing}


def _new_stream(d: int, settings: StreamSettings) -> Stream:
    if isinstance(settings.n_components, int) and settings.n_components > d:
        raise DataError(f"n_components = {settings.n_components} must lie between 1 and {d}: the rows have {d} columns")
    return Stream(d, settings)
