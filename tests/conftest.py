"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# The gate repeats to the bit: examples are drawn from the test itself. `make soak` may look further.
settings.register_profile(
    "gate", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))
