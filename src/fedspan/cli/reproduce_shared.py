"""What the reproductions of papers share."""

from __future__ import annotations

from collections.abc import Callable

from fedspan.errors import ConfigurationError

Report = Callable[[str], None]
"""Is told, in a line, how far things are."""


def curve_writer() -> Callable[..., None]:
    """Return `fedspan.cli.plots.write_curves`; where matplotlib is absent, say so before anything is computed."""
    try:
        from fedspan.cli.plots import write_curves
    except ImportError as cause:
        raise ConfigurationError(
            "figures need matplotlib: install fedspan[plots], or ask for the tables only"
        ) from cause
    return write_curves
