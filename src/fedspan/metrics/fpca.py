"""What the FPCA paper (Grammenos et al. 2020, supplement) promises of streams and merges, evaluated on a problem.

===================  ==========================  ===============================================================
symbol               name here                   meaning
===================  ==========================  ===============================================================
Y (d x n)            X' of shape (d, n)          the pooled data; our rows are the paper's columns
sigma_i(Y)           ``values``                  singular values of X, largest first
rho_r(Y)             ``residual``                root of the sum of sigma_i^2 over i > r
lambda_i             ``values**2 / rows``        eigenvalues of the covariance Xi
tau, b               ``rows``, ``block_rows``    rows of a site's stream, rows of one block
p, alpha, c          ``p``, ``alpha``, ``c``     Theorem 1's constants: p > 1, alpha >= 1, c > 0
q                    ``depth``                   levels of merges: 1 where all sites are merged at once, 0 at a site
E_r                  `energy_ratio`              sigma_r over the sum of the first r (15)
Psi                  ``noise``                   its Frobenius norm; noise on the summaries of one merge
omega                ``omega``                   deviation of the noise on a covariance; (17) is
                                                 `fedspan.privacy.published.streaming_mod_sulq_omega`
===================  ==========================  ===============================================================

Choices made where the paper leaves room:

- Theorem 1 prints "with probability at most tau^(-c alpha^2) + e^(-c alpha r)". That is the probability that its bounds
  fail, and is called ``failure`` here. It prints ||Y - Y||_F^2 where the second Y has a hat. The constant hidden by
  "lesssim" is 1. Its lambda_i belong to the unknown distribution; the sample's stand for them. That rows are Gaussian,
  independent and of mean zero is not checked. Below tau = p eta^2 b, "only required to obtain a tidy bound", the G that
  is printed runs to 0 and bounds nothing: it is infinite here. A rank below r has no eta, and G = 0.
- "Vacuous" means that the bound is true and says nothing: it is not below what holds for U S = 0 (the total variance in
  Theorem 1, ||Y||_F for merges), or not below 1 (a probability, a correlation). Theorem 1 is hardly ever otherwise:
  G >= 298 rho_r^2, whatever p, and at p = 2 it asks for blocks of 84 r rows.
- Trees need not be complete: ``depth`` is the largest number of merges between a site and the root.
- The proofs of Lemma 11 and Theorem 3 take a site's streamed pair for the SVD of its rows. With ``blocks`` > 1 it is
  not, and ``why_not`` says so.
- ``sharper`` is ours. A truncation of Z to rank r drops rho_r^2(Z), and Z Z' <= Y Y' for the rows Y under it. Nodes
  equally far from the root hold disjoint rows, so all of them together drop at most rho_r^2(Y). So after t truncations
  in a row ||U S - Y B||_F^2 <= ||Y||_F^2 - ||S||_F^2 <= t rho_r^2(Y). No smaller factor than sqrt(t) holds for all
  data. With noise in one merge it is sqrt(2) rho_r + (1 + sqrt(2)) ||Psi||_F, as what the cut drops of Z is orthogonal
  to Z - Y. Blocks count: t = blocks + depth. It needs exact SVDs and no forgetting.
- (16) is proven in the paper for the best pair of each rank. A streamed pair is not the best one: its ``high`` side
  can fail, even at a fixed rank; ``certain`` cannot. ``low`` always holds.
- Lemma 8's set (38) is printed as a set of one number; it is the interval from that number to 1. Its bound is never
  below 3/4, whatever the noise: the factor (1 - phi)/4 is at most 1/4. It is about a worst data set, not about yours.
- Lemma 9 breaks off before its conclusion: so many rows are needed for that correlation, they need not be enough. C1
  is hidden and 1 by default; C2 is 16 in the proof. (56) lacks a square on its left; (57) is right.
- Left out: Lemma 3, a sum of ratios (15) called an error; and "no higher than min rank(Y_i)" after Theorem 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedspan.errors import ConfigurationError, DataError
from fedspan.metrics.fpca_theorems import (
    MergeBound,
    Problem,
    RankBracket,
    StreamBound,
    inequality_16,
    lemma_11,
    theorem_1,
    theorem_2,
    theorem_3,
)
from fedspan.metrics.subspace import Array, as_matrix, as_square

CONSTANTS = "Theorem 1's hidden constant and Lemma 9's C1 are taken as 1: compare these, do not certify with them"


@dataclass(frozen=True)
class FpcaBounds:
    """What the FPCA paper promises for one problem; see `fpca_bounds`. None where it was not asked for."""

    residual: float  # rho_r(Y): no pair of rank r is nearer to Y
    energy: float  # E_r (15)
    lemma_11: MergeBound
    theorem_2: MergeBound
    theorem_3: MergeBound
    theorem_1: StreamBound | None
    bracket: RankBracket | None  # (16)
    constants: str = CONSTANTS


@dataclass(frozen=True)
class MergeError:
    """How far a merged summary is from the data, beside what is promised; see `merge_error`."""

    error: float  # the least ||U S - Y B||_F over unitary B
    floor: float  # rho_r(Y): no pair of rank r has a smaller error
    lost: float  # sqrt(||Y||_F^2 - ||S||_F^2), which needs no rows: after exact cuts the error is at most this
    theorem_3: MergeBound
    within: bool  # error is at most theorem_3.error, up to rounding
    applies: bool
    why_not: str


def fpca_bounds(
    values: ArrayLike,
    *,
    r: int,
    d: int | None = None,
    depth: int = 1,
    blocks: int = 1,
    noise: float = 0.0,
    ranks: tuple[int, int] | None = None,
    rows: int | None = None,
    block_rows: int | None = None,
    p: float = 2.0,
    alpha: float = 1.0,
    c: float = 1.0,
) -> FpcaBounds:
    """Evaluate Theorems 1 to 3, Lemma 11, (15) and (16) of FPCA; `fpca_correlation` and `fpca_rows` are Lemmas 8 and 9.

    Parameters
    ----------
    values : array
        All singular values of the pooled rows X, largest first.
    r : int
        Rank of the summaries.
    d : int, optional
        Number of columns; as many as ``values`` where not given.
    depth, blocks : int
        The largest number of merges between a site and the root, and of blocks that one site folds.
    noise : float
        ||Psi||_F of Theorem 2.
    ranks : (int, int), optional
        Smallest and largest rank of an adaptive run, for (16).
    rows, block_rows : int, optional
        tau and b, for Theorem 1 with its constants ``p``, ``alpha`` and ``c``.

    Examples
    --------
    >>> found = fpca_bounds([5.0, 4.0, 0.1], r=2, depth=3)
    >>> found.residual, found.theorem_3.error, found.theorem_3.sharper
    (0.1, 3.297, 0.2)
    >>> found.lemma_11.why_not
    'it is about one level of merges, and depth is 3: see Theorem 3'
    """
    sigma = _spectrum(values)
    size = len(sigma) if d is None else d
    _check_problem(sigma, size, r, depth, blocks, noise)
    problem = Problem(sigma, size, r, depth, blocks, noise)
    return FpcaBounds(
        residual=problem.residual(r),
        energy=energy_ratio(sigma, r),
        lemma_11=lemma_11(problem),
        theorem_2=theorem_2(problem),
        theorem_3=theorem_3(problem),
        theorem_1=_stream(problem, rows, block_rows, p, alpha, c),
        bracket=None if ranks is None else _bracket(problem, *ranks),
    )


def merge_error(basis: ArrayLike, values: ArrayLike, *, gram: ArrayLike, depth: int = 1, blocks: int = 1) -> MergeError:
    """Measure ||U S - Y B||_F, the best unitary B taken, beside Theorem 3's bound on it.

    The least over B is ||S||_F^2 + ||Y||_F^2 - 2 ||(U S)'Y||_*, an orthogonal Procrustes problem; a factor of the Gram
    matrix has the same singular values there as Y. The squares cancel where the error is small: below about
    1e-8 ||Y||_F all of it is rounding.

    Parameters
    ----------
    basis : array of shape (d, r)
        U: orthonormal columns; used as given.
    values : array of shape (r,)
        The diagonal of S: singular values of the rows (not divided by their number, no forgetting).
    gram : array of shape (d, d)
        X'X = YY' of the pooled rows, centred if the summaries were.
    depth, blocks : int
        The largest number of merges between a site and the root, and of blocks that one site folds.

    Examples
    --------
    >>> import numpy as np
    >>> found = merge_error(np.eye(3)[:, :1], [2.0], gram=np.diag([4.0, 1.0, 0.0]), depth=1)
    >>> found.error, found.floor, found.theorem_3.error
    (1.0, 1.0, 4.828)
    """
    u, square = as_matrix(basis, "basis"), as_square(gram, "gram")
    s = np.asarray(values, dtype=np.float64)
    if u.shape[0] != square.shape[0] or s.shape != (u.shape[1],):
        raise DataError(
            f"basis has shape {u.shape}, values {s.shape}, gram {square.shape}; expected (d, r), (r,) and (d, d) "
            "(components_ hold the vectors in rows: pass components_.T)"
        )
    eigenvalues, vectors = np.linalg.eigh(square)
    sigma = np.sqrt(np.maximum(eigenvalues[::-1], 0.0))
    _check_problem(_spectrum(sigma), len(sigma), u.shape[1], depth, blocks, 0.0)
    problem = Problem(sigma, len(sigma), u.shape[1], depth, blocks, 0.0)
    kept, total = float(np.sum((u * s) ** 2)), problem.total**2
    nuclear = np.linalg.norm((u * s).T @ (vectors[:, ::-1] * sigma), "nuc")
    error = math.sqrt(max(0.0, kept + total - 2 * float(nuclear)))
    bound, slack = theorem_3(problem), 4 * math.sqrt(np.finfo(np.float64).eps)
    doubts = [] if bound.applies else [bound.why_not]
    if kept > total * (1 + slack):
        doubts.append(f"U S holds {kept:.6g} and the rows {total:.6g}: it is no summary of these rows at their scale")
    return MergeError(
        error=error,
        floor=problem.residual(problem.r),
        lost=math.sqrt(max(0.0, total - kept)),
        theorem_3=bound,
        within=error <= bound.error + slack * problem.total,
        applies=not doubts,
        why_not="; ".join(doubts),
    )


def energy_ratio(values: ArrayLike, r: int) -> float:
    """Return E_r = sigma_r / (sigma_1 + ... + sigma_r), which (15) holds in a band [alpha, beta].

    It is never above 1/r, so a rank of 1/beta or more does not grow. (The text calls its sum a variance; it is one of
    singular values, not of squares.)

    >>> energy_ratio([3.0, 2.0, 1.0], 2)
    0.4
    """
    sigma = _spectrum(values)
    if not 1 <= r <= len(sigma):
        raise ConfigurationError(f"r is {r} with {len(sigma)} values; expected 1 <= r <= their number")
    return float(sigma[r - 1] / sigma[:r].sum())


# ---- parts that are asked for ----------------------------------------------------------------------------------


def _stream(
    problem: Problem, rows: int | None, block_rows: int | None, p: float, alpha: float, c: float
) -> StreamBound | None:
    if rows is None and block_rows is None:
        return None
    if rows is None or block_rows is None or not 1 <= block_rows <= rows or rows < 2:
        raise ConfigurationError(
            f"rows is {rows}, block_rows {block_rows}; Theorem 1 needs both, 1 <= block_rows <= rows and rows >= 2"
        )
    if not (1 < p < math.inf and 1 <= alpha < math.inf and 0 < c < math.inf):
        raise ConfigurationError(f"p is {p}, alpha {alpha}, c {c}; Theorem 1 takes p > 1, alpha >= 1 and c > 0")
    return theorem_1(problem, rows, block_rows, p, alpha, c)


def _bracket(problem: Problem, r_min: int, r_max: int) -> RankBracket:
    if not 1 <= r_min <= r_max <= len(problem.values):
        raise ConfigurationError(
            f"ranks is ({r_min}, {r_max}); expected 1 <= r_min <= r_max <= {len(problem.values)}, their number"
        )
    return inequality_16(problem, r_min, r_max)


def _spectrum(values: ArrayLike) -> Array:
    sigma = np.asarray(values, dtype=np.float64)
    if (
        sigma.ndim != 1
        or not sigma.size
        or not np.all(np.isfinite(sigma))
        or sigma[-1] < 0
        or np.any(np.diff(sigma) > 0)
    ):
        raise ConfigurationError("values holds the singular values of X, largest first, none below 0; sort them")
    if sigma[0] == 0:
        raise DataError("all singular values are 0: there is no data to bound anything of")
    return sigma


def _check_problem(sigma: Array, d: int, r: int, depth: int, blocks: int, noise: float) -> None:
    if not 1 <= r <= len(sigma) <= d:
        raise ConfigurationError(
            f"r is {r}, d {d}, with {len(sigma)} values; expected 1 <= r <= the number of values <= d"
        )
    if depth < 0 or blocks < 1:
        raise ConfigurationError(f"depth is {depth}, blocks {blocks}; expected depth >= 0 merges, blocks >= 1")
    if not 0 <= noise < math.inf:
        raise ConfigurationError(f"noise is {noise}; expected ||Psi||_F: a finite number, not negative")
