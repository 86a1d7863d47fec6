"""What the sites' halves of the learners share: a site's model and rows, and what of a fit may be averaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.errors import ConvergenceError, DataError
from fedspan.learners.model import class_numbers, model_of
from fedspan.learners.rows import Descent, Fitted, Rows
from fedspan.learners.settings import Descending
from fedspan.learners.task import Learned, Task, stalled
from fedspan.rounds import Gather, Reply, Round, Site, Solve, Step, Sum, site_step

_FIRST = 4
"""What first parameters are drawn with, beside the seed."""
FURTHEST = 10.0
"""A site's reply is left out where its shared parameters went further than so many times their length (and 1)."""


def learning_step(name: str) -> Callable[[Callable[[Site, Any], Reply]], Step]:
    """Register a learner's step: a site that lost its state begins anew; what overflows is counted, not warned of."""

    def register(run: Callable[[Site, Any], Reply]) -> Step:
        return site_step(name, lost="restart")(np.errstate(over="ignore", invalid="ignore")(run))

    return register


def model_at(site: Site) -> Any:
    """Return the model that the sites agreed on."""
    return model_of(site.state["learning"]["model"])


def own_at(site: Site) -> Array:
    """Return a site's own parameters: as it left them, or as all sites begin."""
    if "own" in site.state:
        return np.asarray(site.state["own"])
    return first_parameters(site.state["learning"])[1]


def first_parameters(learning: dict[str, Plain]) -> tuple[Array, Array]:
    """Return the parameters that everyone begins with: the shared ones, and a site's own."""
    return _first_parameters(json.dumps(learning["model"], sort_keys=True), learning["seed"])


@lru_cache(maxsize=2)
def _first_parameters(model: str, seed: int) -> tuple[Array, Array]:
    # a stream of its own: data simulated with the same seed must not begin with the same numbers
    shared, own = model_of(json.loads(model)).start(np.random.default_rng([seed, _FIRST]))
    shared.flags.writeable = own.flags.writeable = False  # everyone in this process is given these very arrays
    return shared, own


def rows_at(site: Site, fresh: int | None = None) -> Rows:
    """Return a site's rows; ``fresh``: the next so many of them, from the first again where too few are left."""
    rows = labelled_rows(site.data, site.state["learning"]["classes"])
    if fresh is None or fresh >= len(rows.y):
        return rows
    begin = int(site.state.get("read", 0))
    if begin + fresh > len(rows.y):
        begin = 0
    site.state = {**site.state, "read": begin + fresh}
    return Rows(rows.X[begin : begin + fresh], rows.y[begin : begin + fresh])


def labelled_rows(data: Any, classes: list[Any] | None) -> Rows:
    """Return rows with labels as numbers of classes (-1: of none), or with their numbers."""
    return Rows(data.X, data.y if classes is None else class_numbers(data.y, classes))


def contribution(site: Site, fitted: Fitted, begun: Array, *, weight: float = 1.0, **more: Array) -> Reply:
    """Return what a site adds to the sums: its shared parameters and its loss, both weighted.

    Where the descent from ``begun`` diverged, what came of it would spoil everyone's: it is left out, and counted.
    """
    kept = {key: site.state[key] for key in ("read",) if key in site.state}
    lost = diverged(fitted, begun)
    if lost:
        fitted, weight = Fitted(np.zeros_like(begun), fitted.own, 0.0), 0.0
        more = {key: np.zeros_like(value) for key, value in more.items()}
        kept["diverged"] = int(site.state.get("diverged", 0)) + 1
    else:
        kept["own"] = fitted.own
    factor = fitted.shared.dtype.type(weight)
    parts = {"shared": factor * fitted.shared, **{key: weight * value for key, value in more.items()}}
    figures = {"weight": weight, "loss": weight * fitted.loss, "diverged": float(lost)}
    return Reply({**parts, **figures}, state=kept)


def diverged(fitted: Fitted, begun: Array) -> bool:
    """Whether parameters are no longer finite numbers, or the shared ones went further than any descent should.

    >>> [diverged(Fitted(np.full(2, far), np.zeros(0), 0.1), np.ones(2)) for far in (5.0, 50.0, np.nan)]
    [False, True, True]
    """
    if not all(np.isfinite(part).all() for part in (fitted.shared, fitted.own, fitted.loss)):
        return True
    return not np.linalg.norm(fitted.shared - begun) <= FURTHEST * (1 + np.linalg.norm(begun))


def average(step: Step, message: dict[str, Plain], task: Task) -> Solve[dict[str, Any]]:
    """Ask for one round of updates of ``message["shared"]``: means over the replies, the shared part settled."""
    answers = yield Round(step, message, Sum(), task.cohort, estimate=message["shared"])
    weight = float(answers["weight"])
    if weight == 0:
        raise ConvergenceError(
            f"{step.name}: the learner diverges at every site that answered, {answers['diverged']:.0f}: its parameters "
            f"run away, or are no longer finite numbers; give it a smaller rate, or scale the rows (and y, if numbers)"
        )
    means = {key: value / weight for key, value in answers.items() if key not in ("weight", "diverged", "shared")}
    mean = (answers["shared"] / weight).astype(task.start.dtype, copy=False)  # an engine may add up in float64
    return {**means, "shared": model_of(task.model).settled(mean), "diverged": int(answers["diverged"])}


def averaging(step: Step, message: dict[str, Plain], task: Task, settings: Descending) -> Solve[Learned]:
    """Ask for updates, round after round, until the budget is used or the loss stalls: what most learners do."""
    shared, losses, diverged = task.start, [], 0
    for _ in range(settings.rounds):
        means = yield from average(step, {**message, "shared": shared}, task)
        shared = means["shared"]
        losses.append(float(means["loss"]))
        diverged += means["diverged"]
        if stalled(losses, settings.stall):
            break
    converged = None if settings.stall is None else stalled(losses, settings.stall)
    return Learned(shared, losses[-1], converged, diverged)


@site_step("learn.describe", setup=True, free=True)
def describe(site: Site, message: Plain) -> Reply:
    """How many rows and which columns a site has, and which labels: what a model must have outputs for."""
    data = site.data
    if not hasattr(data, "y"):
        raise DataError(f"site {site.id!r} has rows, but nothing to predict of them; give it X and y")
    columns = None if data.columns is None else list(data.columns)
    classes = data.classes if data.is_classes else None
    return Reply({"rows": data.shape[0], "features": data.shape[1], "columns": columns, "classes": classes})


@site_step("learn.agree", setup=True, free=True)
def agree(site: Site, message: Plain) -> Reply:
    """Keep what the sites agreed on: the model, its classes, and the seed of first parameters."""
    return Reply(1, state={"learning": message})


@site_step("learn.evaluate", lost="restart", free=True)
@np.errstate(over="ignore", invalid="ignore")
def evaluate(site: Site, message: Plain) -> Reply:
    """How well the shared parameters and a site's own, as stored, predict its test rows (its rows, without any).

    ``tune``: after so many more epochs of descent in ``part`` at this site. They are forgotten again, or with ``keep``
    stay at the site as what it predicts with: its own part, or where nothing is its own, all of the model.
    """
    model, own, shared, kept = model_at(site), own_at(site), message["shared"], None
    if message.get("tune"):
        fitted = model.fit(shared, own, rows_at(site), Descent(*message["tune"]), site.rng, message["part"])
        shared, own = fitted.shared, fitted.own
        if message["keep"]:
            kept = {"tuned": shared if message["part"] == "both" else own}
    test, classes = site.data.test or site.data, site.state["learning"]["classes"]
    seen = None if classes is None else site.data.classes
    return Reply(scores(model, shared, own, test, classes, seen), state=kept)


def scores(
    model: Any, shared: Array, own: Array, data: Any, classes: list[Any] | None, seen: list[Any] | None
) -> dict[str, Any]:
    """Return the figures of one site: rows, and those predicted rightly (classes), or the square error (numbers).

    ``unseen``: rows with a label that no site had in training; ``new``: with one that this site had not (``seen``).
    """
    rows = labelled_rows(data, classes)
    outputs = model.outputs(shared, own, rows.X)
    if classes is None or seen is None:
        return {"rows": len(rows.y), "squares": float(np.sum((outputs[:, 0] - rows.y) ** 2))}
    right = int(np.sum(outputs.argmax(axis=1) == rows.y))
    new = int(np.sum(class_numbers(data.y, seen) < 0))
    return {"rows": len(rows.y), "right": right, "unseen": int(np.sum(rows.y < 0)), "new": new}


def ask_all(step: Step, message: Plain = None) -> Solve[dict[str, Any]]:
    """Ask every site, each seen by name."""
    return (yield Round(step, message, Gather()))  # type: ignore[no-any-return]
