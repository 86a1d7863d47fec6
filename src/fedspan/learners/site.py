"""What the sites' halves of the learners share: a site's model and rows, and what of a fit may be averaged."""

from __future__ import annotations

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
    # a stream of its own: data simulated with the same seed must not begin with the same numbers
    shared, own = model_of(learning["model"]).start(np.random.default_rng([learning["seed"], _FIRST]))
    return shared, own


def rows_at(site: Site, fresh: int | None = None) -> Rows:
    """Return a site's rows; ``fresh``: the next so many of them, from the first again where none are left."""
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


def contribution(site: Site, fitted: Fitted, *, weight: float = 1.0, **more: Array) -> Reply:
    """Return what a site adds to the sums: its shared parameters and its loss, both weighted.

    Parameters that are no longer finite numbers would spoil everyone's: they are left out, and counted.
    """
    kept = {key: site.state[key] for key in ("read",) if key in site.state}
    finite = all(np.isfinite(part).all() for part in (fitted.shared, fitted.own, fitted.loss))
    if not finite:
        fitted, weight = Fitted(np.zeros_like(fitted.shared), fitted.own, 0.0), 0.0
        more = {key: np.zeros_like(value) for key, value in more.items()}
        kept["diverged"] = int(site.state.get("diverged", 0)) + 1
    else:
        kept["own"] = fitted.own
    factor = fitted.shared.dtype.type(weight)
    parts = {"shared": factor * fitted.shared, **{key: weight * value for key, value in more.items()}}
    figures = {"weight": weight, "loss": weight * fitted.loss, "diverged": 0.0 if finite else 1.0}
    return Reply({**parts, **figures}, state=kept)


def average(step: Step, message: dict[str, Plain], task: Task) -> Solve[dict[str, Any]]:
    """Ask for one round of updates of ``message["shared"]``: means over the replies, the shared part settled."""
    answers = yield Round(step, message, Sum(), task.cohort, estimate=message["shared"])
    weight = float(answers["weight"])
    if weight == 0:
        raise ConvergenceError(
            f"{step.name}: at all {answers['diverged']:.0f} sites that answered the parameters are no longer finite "
            f"numbers: the learner diverges; give it a smaller rate, or scale the rows"
        )
    means = {key: value / weight for key, value in answers.items() if key not in ("weight", "diverged", "shared")}
    shared = model_of(task.model).settled(answers["shared"] / answers["shared"].dtype.type(weight))
    return {**means, "shared": shared, "diverged": int(answers["diverged"])}


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
    """How many rows and columns a site has, and which labels: what a model must have outputs for."""
    data = site.data
    if not hasattr(data, "y"):
        raise DataError(f"site {site.id!r} has rows, but nothing to predict of them; give it X and y")
    classes = data.classes if data.is_classes else None
    return Reply({"rows": data.shape[0], "features": data.shape[1], "classes": classes})


@site_step("learn.agree", setup=True, free=True)
def agree(site: Site, message: Plain) -> Reply:
    """Keep what the sites agreed on: the model, its classes, and the seed of first parameters."""
    return Reply(1, state={"learning": message})


@site_step("learn.evaluate", lost="restart", free=True)
def evaluate(site: Site, message: Plain) -> Reply:
    """How well the shared parameters and a site's own, as stored, predict its test rows (its rows, without any).

    ``tune``: after so many more epochs of descent in ``part`` at this site, which are kept nowhere.
    """
    model, own, shared = model_at(site), own_at(site), message["shared"]
    if message.get("tune"):
        fitted = model.fit(shared, own, rows_at(site), Descent(*message["tune"]), site.rng, message["part"])
        shared, own = fitted.shared, fitted.own
    test = site.data.test or site.data
    return Reply(scores(model, shared, own, test, site.state["learning"]["classes"]))


def scores(model: Any, shared: Array, own: Array, data: Any, classes: list[Any] | None) -> dict[str, Any]:
    """Return the figures of one site: rows, and those predicted rightly (classes), or the square error (numbers)."""
    rows = labelled_rows(data, classes)
    outputs = model.outputs(shared, own, rows.X)
    if classes is None:
        return {"rows": len(rows.y), "squares": float(np.sum((outputs[:, 0] - rows.y) ** 2))}
    right = int(np.sum(outputs.argmax(axis=1) == rows.y))
    return {"rows": len(rows.y), "right": right, "unseen": int(np.sum(rows.y < 0))}


def ask_all(step: Step, message: Plain = None) -> Solve[dict[str, Any]]:
    """Ask every site, each seen by name."""
    return (yield Round(step, message, Gather()))  # type: ignore[no-any-return]
