"""One file per method, both halves in it. A solver is the frozen dataclass of its settings."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fedspan.errors import ConfigurationError, nearest
from fedspan.solvers.covariance import Covariance
from fedspan.solvers.doubling import Doubling
from fedspan.solvers.faps import FAPS
from fedspan.solvers.fedpower import FedPower
from fedspan.solvers.krylov import BlockKrylov
from fedspan.solvers.mod_sulq import ModSulq
from fedspan.solvers.mod_sulq_stream import StreamingModSulq
from fedspan.solvers.one_shot import UDA, WDA, RandomizedSVD
from fedspan.solvers.power import Power, PrivatePower
from fedspan.solvers.problem import Problem, Solution, Solver
from fedspan.solvers.streaming import Streaming

SOLVERS: dict[str, type[Solver]] = {
    "power": Power,
    "fedpower": FedPower,
    "krylov": BlockKrylov,
    "faps": FAPS,
    "private-power": PrivatePower,
    "mod-sulq": ModSulq,
    "covariance": Covariance,
    "uda": UDA,
    "wda": WDA,
    "dr-svd": RandomizedSVD,
    "streaming": Streaming,
    "streaming-mod-sulq": StreamingModSulq,
    "doubling": Doubling,
}
"""Every solver by the name that studies and estimators use."""

NAMES = {kind: name for name, kind in SOLVERS.items()}

__all__ = [
    "FAPS", "NAMES", "SOLVERS", "UDA", "WDA", "BlockKrylov", "Covariance", "Doubling", "FedPower", "ModSulq", "Power",
    "PrivatePower", "Problem", "RandomizedSVD", "Solution", "Solver", "Streaming", "StreamingModSulq", "check_solver",
    "choose", "make", "setting_names", "settings_of",
]  # fmt: skip


def make(name: str, **settings: Any) -> Solver:
    """Return the solver of that name with these settings.

    >>> make("power", rounds=5)
    Power(rounds=5, tol=1e-09, oversampling=0)
    """
    if name not in SOLVERS:
        raise ConfigurationError(f"there is no solver {name!r}; {nearest(name, [*SOLVERS, 'auto'])}")
    kind = SOLVERS[name]
    known = setting_names(name)
    for key in settings:
        if key not in known:
            raise ConfigurationError(f"solver {name!r} has no setting {key!r}; {nearest(key, known)}")
    inner: Any = settings.pop("stage_settings", {})
    if inner or isinstance(settings.get("stage"), str):
        settings["stage"] = make(str(settings.get("stage", "power")), **inner)
    return kind(**settings)


def setting_names(name: str) -> list[str]:
    """Return what `make` can set of that solver: its fields; of one around another, that one's too, as a dict."""
    names = [field.name for field in fields(SOLVERS[name])]  # type: ignore[arg-type]
    return [*names, "stage_settings"] if "stage" in names else names


def settings_of(solver: Solver) -> dict[str, Any]:
    """Return a solver's settings as plain data, which `make` takes back; a solver inside is a name and its own.

    >>> settings_of(Doubling(stage=Power(rounds=9), n0=2))["stage_settings"]
    {'rounds': 9, 'tol': 1e-09, 'oversampling': 0}
    """
    settings = {field.name: getattr(solver, field.name) for field in fields(solver)}  # type: ignore[arg-type]
    stage: Any = settings.get("stage")
    if type(stage) in NAMES:
        settings |= {"stage": NAMES[type(stage)], "stage_settings": settings_of(stage)}
    return settings


def check_solver(solver: object) -> None:
    """Refuse what is neither a solver's name nor a solver: None, or a class instead of an instance.

    >>> check_solver(Power)
    Traceback (most recent call last):
    fedspan.errors.ConfigurationError: solver is the class Power, not a solver: write Power() or "power"
    """
    if isinstance(solver, type) and solver in NAMES:
        name = solver.__name__
        raise ConfigurationError(f'solver is the class {name}, not a solver: write {name}() or "{NAMES[solver]}"')
    parts = ("solve", "rank", "partial")
    if not isinstance(solver, str) and (isinstance(solver, type) or not all(hasattr(solver, part) for part in parts)):
        known = ", ".join(f'"{name}"' for name in ("auto", *SOLVERS))
        raise ConfigurationError(f"solver is a name ({known}) or a solver such as BlockKrylov(), got {solver!r}")


def choose(d: int, k: int, *, full: bool) -> Solver:
    """Choose a solver for d features and k components: ``solver="auto"``.

    Where some sites may be silent: FedPower, which stays right on average. Where the Gram matrix is no more to
    send than a few Krylov blocks: covariance, one exact round. Else block Krylov.
    """
    if not full:
        return FedPower()
    krylov = BlockKrylov()
    return Covariance() if d <= 10 * krylov.rank(k, d) else krylov
