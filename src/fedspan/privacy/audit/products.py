"""G known on a subspace: all that products G z say together, with what rounding leaves of it.

The blocks Z of a converging power iteration are nearly dependent, so Prop. 2's inverse of Z Z' would blow rounding up.
Here each new block is folded in by an SVD in which every direction weighs as well as it is known. What comes out is an
orthonormal basis Q, the images B = G Q and the error of each image; a direction is used where its error is below what
it brings. Were all errors independent, this would be the least-squares solution of all equations so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedspan.encoding import Array

_CLEAR = 0.1  # an image is used where its error is at most this share of it,
_SURE = 1e-9  # or this share of the whole G: then it is known to be zero
_FIRM = 30.0  # a direction known to so many times the rounding unit is not worked on any more
_SURELY, _NEWER = 1e-6, 3.0  # so well are directions known that predict others, which differ by so many errors
_NEWS = 0.5  # a block that betters no direction by more than this share is passed over


@dataclass(frozen=True)
class Products:
    """Images B of an orthonormal basis Q under G, with their errors. Errors are shares of ||G||."""

    basis: Array
    images: Array
    errors: Array
    rounding: float
    """The error of an exact product."""
    norm: float = 0.0
    """||G|| as far as it was seen."""

    @classmethod
    def none(cls, features: int, rounding: float) -> Products:
        """Return the state before the first release."""
        return cls(np.zeros((features, 0)), np.zeros((features, 0)), np.zeros(0), rounding)

    def fold(self, z: Array, y: Array, error: float = 0.0) -> Products:
        """Return what is known once G z = y is known too, each column to ``error`` and rounding."""
        sizes = np.linalg.norm(z, axis=0)
        z, y = z[:, sizes > 0] / sizes[sizes > 0], y[:, sizes > 0] / sizes[sizes > 0]
        norm = max(self.norm, float(np.linalg.norm(y, axis=0).max(initial=0.0)))
        firm = self._part(self.errors <= _FIRM * self.rounding)
        weak = self._part(self.errors > _FIRM * self.rounding)
        seen = firm.basis.T @ z
        z, y = z - firm.basis @ seen, y - firm.images @ seen
        z -= firm.basis @ (firm.basis.T @ z)
        noise = np.hypot(max(self.rounding, error), np.linalg.norm(firm.errors[:, None] * seen, axis=0))
        shared = weak.basis.T @ z
        gain = np.linalg.norm(weak.errors[:, None] * shared / noise)
        if gain < _NEWS and np.linalg.norm((z - weak.basis @ shared) / noise) < 1:
            return replace(self, norm=norm)
        if not len(weak.errors) and np.allclose(z.T @ z, np.eye(z.shape[1]), rtol=0, atol=1e-13):
            return firm._and(z, y, noise, norm)  # a Krylov block: nothing to turn
        stack = np.hstack([weak.basis / weak.errors, z / noise])
        u, s, vt = np.linalg.svd(stack, full_matrices=False)
        held = s > 1  # beyond this, the error of an image is as large as G
        images = np.hstack([weak.images / weak.errors, y / noise]) @ vt[held].T / s[held]
        return firm._and(u[:, held] - firm.basis @ (firm.basis.T @ u[:, held]), images, 1 / s[held], norm)

    def _and(self, basis: Array, images: Array, errors: Array, norm: float) -> Products:
        stacked = np.hstack([self.basis, basis]), np.hstack([self.images, images]), np.append(self.errors, errors)
        return Products(*stacked, self.rounding, norm)

    def clear(self) -> Products:
        """Return the directions whose images stand out from their errors."""
        sizes = np.linalg.norm(self.images, axis=0)
        return self._part(self.errors * self.norm <= np.maximum(_CLEAR * sizes, _SURE * self.norm))

    def told_anew(self) -> Products:
        """Return those whose images are not what the surely known ones predict already, for a positive G.

        Where few rows lie behind G, Nyström's extension of some directions gives all the others exactly, and a
        product that is blurred by rounding would only spoil it.
        """
        sure = self.errors <= _SURELY
        known, weak = self._part(sure), self._part(~sure)
        factor = known.remainder()
        predicted = known.basis @ (known.images.T @ weak.basis) + factor @ (factor.T @ weak.basis)
        kept = sure.copy()
        kept[~sure] = np.linalg.norm(weak.images - predicted, axis=0) > _NEWER * weak.errors * self.norm
        return self._part(kept)

    def exact(self, limit: float) -> Products:
        """Return the directions whose images are known to ``limit``, as a share of ||G||."""
        return self._part(self.errors <= limit)

    def _part(self, which: Array) -> Products:
        return Products(self.basis[:, which], self.images[:, which], self.errors[which], self.rounding, self.norm)

    def less(self, factor: Array) -> Products:
        """Return the same for G - factor factor'."""
        return replace(self, images=self.images - factor @ (factor.T @ self.basis))

    def published(self) -> Array:
        """The minimum-norm Phi with Phi Z = Y, as in FAPS (Prop. 2 and Figure 1): it need not be symmetric."""
        phi: Array = self.images @ self.basis.T
        return phi

    def symmetric(self) -> Array:
        """The minimum-norm symmetric one: B Q' + Q B' - Q (Q'B) Q'."""
        inside = self.basis.T @ self.images
        half = (self.images - self.basis @ ((inside + inside.T) / 4)) @ self.basis.T
        symmetric: Array = half + half.T
        return symmetric

    def remainder(self) -> Array:
        """Return a factor of E (Q'B)^+ E', where E = (I - QQ')B: no positive G with G Q = B has less there.

        With it the symmetric solution is Nyström's B (Q'B)^+ B', which is never further from G: of the unseen
        block H it leaves H - E (Q'B)^+ E', which lies between 0 and H.
        """
        if self.basis.shape[1] == len(self.basis):
            return np.zeros((len(self.basis), 0))
        inside = self.basis.T @ self.images
        outside = self.images - self.basis @ inside
        values, turn = np.linalg.eigh((inside + inside.T) / 2)
        outside = outside @ turn
        errors = np.linalg.norm(self.errors[:, None] * turn, axis=0) * self.norm
        kept = errors < _CLEAR * np.minimum(values, np.linalg.norm(outside, axis=0))
        factor: Array = outside[:, kept] / np.sqrt(values[kept])
        return factor

    def nystroem(self) -> Array:
        """The least positive semi-definite one: B (Q'B)^+ B'."""
        factor = self.remainder()
        least: Array = self.symmetric() + factor @ factor.T
        return least
