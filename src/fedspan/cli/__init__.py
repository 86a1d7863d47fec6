"""The command line: ``fedspan VERB``. One file for each verb; what they share is in ``output`` and ``runs``."""

from fedspan.cli.verbs import app, main

__all__ = ["app", "main"]
