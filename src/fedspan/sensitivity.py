"""What one row, one entry or one site can change: pure formulas, each with its proof.

Every bound is in the Euclidean norm of the release as a vector (Frobenius for matrices), for ANY two neighbouring data
sets, and is attained or nearly so by the neighbours that `Neighbours.worst_row` and `worst_entry` name; tests are made
at those, not at random ones.

Symbols: x a row as it enters the Gram matrix (after imputation, centring, scaling, weights and the site's clip, so
||x|| <= C = ``bound``), G = A'A the sum of xx', m = ``rows_per_person``, Z what the coordinator sent, as received.

============  =================================================================================
relation      neighbouring data sets
============  =================================================================================
row           one has up to m rows more than the other (one person's)
row-replace   up to m rows differ; the number of rows is public
entry         G differs by at most c at (i, j) and (j, i), or at one (i, i); c = ``bound``
ppm-12        G differs by a symmetric E with sqrt(sum_i ||E_i||_1^2) <= c (PPM, (12))
site          all rows of one site differ; a site's prepared rows have a sum of squares of at most S = ``bound``
============  =================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedspan.encoding import Array
from fedspan.errors import PolicyError

RELATIONS = ("row", "row-replace", "entry", "ppm-12", "site")
_REPLACE = math.sqrt(2.0)


@dataclass(frozen=True)
class Neighbours:
    """A neighbour relation with the bound it rests on."""

    relation: str
    bound: float
    """C, c or S: see the table above."""
    raw: float | None = None
    """R, the bound on a row before it is centred, which the mean's release rests on."""
    rows_per_person: int = 1
    whole: float | None = None
    """The bound on a release that no row bound covers (FedPower after local steps)."""

    def product(self, z: Array) -> float:
        """G Z.

        row: ||xx'Z||_F = ||x|| ||Z'x|| <= C^2 ||Z||_2, attained at x = C u, u the leading left singular vector of Z;
        m equal rows attain m times it. Replacing x by y: ||xx' - yy'||_F^2 = ||x||^4 + ||y||^4 - 2 (x'y)^2 <= 2 C^4.
        entry: E = c (e_i e_j' + e_j e_i') moves rows i and j of G Z by c Z_j and c Z_i, so the change is
        c sqrt(||Z_i||^2 + ||Z_j||^2): the two longest rows of Z. ppm-12: PPM Theorem 3.1, c max_i ||Z_i||.
        site: G is positive semi-definite with trace <= S, so ||G||_F <= S; two of them have tr(G G') >= 0, so their
        difference has at most sqrt(2) S.
        """
        z = checked_matrix(z)
        size = float(np.abs(z).max(initial=0.0))
        if size == 0.0:
            return 0.0
        z = z / size  # so that no square underflows: a bound of 0 is for Z = 0 alone
        if self.relation == "entry":
            longest = np.sort(np.einsum("ij,ij->i", z, z))[-2:]
            return self.bound * size * math.sqrt(float(longest.sum()))
        if self.relation == "ppm-12":
            return self.bound * size * math.sqrt(float(np.einsum("ij,ij->i", z, z).max()))
        return self.gram() * size * float(np.linalg.norm(z, 2))

    def gram(self) -> float:
        """The whole of G, as the vector of its entries (or isometric to it: diagonal, sqrt(2) x upper triangle).

        As `product` with Z = I, where the row bounds do not depend on d. entry: both (i, j) and (j, i), so sqrt(2) c.
        ppm-12: ||E||_F^2 = sum_i ||E_i||_2^2 <= sum_i ||E_i||_1^2 <= c^2.
        """
        match self.relation:
            case "row":
                return self.rows_per_person * self.bound**2
            case "row-replace":
                return _REPLACE * self.rows_per_person * self.bound**2
            case "entry":
                return _REPLACE * self.bound
            case "site":
                return _REPLACE * self.bound
        return self.bound

    def total(self, d: int) -> float:
        """The trace of G. A row's part lies in [0, C^2], so replacing it changes no more than leaving it out.

        entry: only a diagonal one counts, c. ppm-12: sum_i |E_ii| <= sum_i ||E_i||_1 <= sqrt(d) c.
        """
        if self.relation in ("row", "row-replace"):
            return self.rows_per_person * self.bound**2
        return self.bound * math.sqrt(d) if self.relation == "ppm-12" else self.bound

    def row_sum(self) -> float:
        """The sum of raw rows, each clipped to R: R for each row there or not, 2 R for each that turns round."""
        radius = self._raw("the sum of the rows")
        return (1.0 if self.relation == "row" else 2.0) * self.rows_per_person * radius

    def degrees(self) -> float:
        """The columns' degrees: the same sum of rows without negative entries, of which no two are opposite.

        x'y >= 0, so ||x - y||^2 = ||x||^2 + ||y||^2 - 2 x'y <= 2 R^2, attained by rows that share no column; sums of m
        such rows have no negative entries either, and norms of at most m R.
        """
        radius = self._raw("the columns' degrees")
        return (1.0 if self.relation == "row" else _REPLACE) * self.rows_per_person * radius

    def squares(self) -> float:
        """Each column's sum of squares about the mean, rows clipped to R there.

        ||(x_j^2)_j||_2 <= ||x||^2 <= R^2; two such vectors have no negative entries, so they differ by sqrt(2) R^2.
        """
        radius = self._raw("the columns' squares")
        return (1.0 if self.relation == "row" else _REPLACE) * self.rows_per_person * radius**2

    def count(self) -> float:
        """The sum of the rows' weights, each at most 1: a row there or not changes it by 1, another weight by less."""
        self._of_rows("the number of rows")
        return float(self.rows_per_person)

    def present(self, d: int) -> float:
        """The number of values present in each column: a row changes each of the d by at most 1."""
        self._of_rows("the number of values present")
        return self.rows_per_person * math.sqrt(d)

    def clipped(self) -> float:
        """A release that is any function of the data, clipped to norm B: any two lie within 2 B of each other.

        One person's m rows may lie at m sites, and move each one's release by as much: the sum by 2 m B, and with m
        mechanisms of mu / m each all of them cost mu^2 / m.
        """
        if self.whole is None:
            raise PolicyError(
                "what leaves a site after local steps depends on its rows in no bounded way; give GaussianPrivacy a "
                "site_norm that it is clipped to, or take local_steps = 1"
            )
        return 2.0 * self.whole * (self.rows_per_person if self.relation in ("row", "row-replace") else 1)

    def worst_row(self, z: Array | None = None, d: int | None = None) -> Array:
        """Return the row at which `product` (`gram` without z) is attained."""
        along: Array = np.eye(1 if d is None else d)
        if z is not None:
            along = np.linalg.svd(checked_matrix(z), full_matrices=False)[0]
        return np.asarray(self.bound * along[:, 0])

    def worst_entry(self, z: Array) -> tuple[int, int]:
        """Return the entry (i, j) of G at which `product` is attained."""
        longest = np.argsort(np.einsum("ij,ij->i", z, z))
        return int(longest[-1]), int(longest[-2 if self.relation == "entry" else -1])

    def _raw(self, release: str) -> float:
        self._of_rows(release)
        if self.raw is None:
            raise PolicyError(
                f"{release} rests on a bound on the raw rows, and none was given; give row_norm Bounds, or a raw_norm"
            )
        return self.raw

    def _of_rows(self, release: str) -> None:
        if self.relation not in ("row", "row-replace"):
            raise PolicyError(f"{release} has no bound under neighbours = {self.relation!r}; set center = false")


def checked_matrix(z: Array) -> Array:
    """Return what a coordinator sent as a finite matrix of float64, or refuse it.

    A bound on NaN would be none, and in narrower floats squares underflow that the product itself keeps.
    """
    z = np.asarray(z)
    if z.ndim != 2 or z.dtype != np.float64 or not np.all(np.isfinite(z)):
        raise PolicyError(f"expected a float64 matrix of finite numbers to multiply with, got {z.dtype}, {z.shape}")
    return z
