"""Privacy: what a study promises (`GaussianPrivacy`), what its releases cost, and what they reveal (`audit`)."""

from fedspan.privacy.gaussian import Bounds, GaussianPrivacy

__all__ = ["Bounds", "GaussianPrivacy"]
