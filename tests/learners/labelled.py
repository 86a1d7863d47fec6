"""Labelled rows for tests of learners, and driving a learner on them without a study around it."""

from __future__ import annotations

import numpy as np

from fedspan.data.labelled import Labelled
from fedspan.engines import InProcess
from fedspan.learners import Task
from fedspan.learners.rows import Rows
from fedspan.learners.site import agree, first_parameters
from fedspan.linalg import orth
from fedspan.rounds import Cohort, Round, Site, drive, numbered
from fedspan.sites import open_sites


def planted(sites=8, rows=40, d=9, k=2, *, noise=0.0, seed=0):
    """Sites of y = w_i' B' x + noise with heads of norm sqrt(k); returns them and B (the paper's section 4)."""
    rng = np.random.default_rng([seed, 1])  # another one than first parameters are drawn with
    basis = orth(rng.standard_normal((d, k)))
    sources = {}
    for i in range(sites):
        head = rng.standard_normal(k)
        X = rng.standard_normal((rows, d))
        y = X @ basis @ (head * np.sqrt(k) / np.linalg.norm(head)) + noise * rng.standard_normal(rows)
        sources[f"site{i}"] = Labelled(X, y)
    return sources, basis


def clouds(sizes=(24, 30, 18, 27), d=6, classes=3, *, seed=0, dtype=np.float32):
    """Sites of rows around one centre for each class, turned a little at each site; test rows of the same."""
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.standard_normal((classes, d))
    sources = {}
    for i, rows in enumerate(sizes):
        shift = 0.3 * rng.standard_normal((classes, d))
        labels = [np.arange(n) % classes for n in (rows, 12)]
        X, X_test = ((centres + shift)[y] + 0.5 * rng.standard_normal((len(y), d)) for y in labels)
        sources[f"site{i}"] = Labelled(X.astype(dtype), labels[0], test=(X_test.astype(dtype), labels[1]))
    return sources


def rows_of(source):
    """A site's rows, as a model is given them."""
    return Rows(source.X, source.y)


def network_spec(learner, *, d=6, classes=3, hidden=(5, 4)):
    """The spec of a small MLP for a learner."""
    return {
        "kind": "mlp", "features": d, "classes": classes, "hidden": list(hidden), "own": learner.own,
        "head_layers": learner.head_layers,
    }  # fmt: skip


def linear_spec(learner, *, d=9, k=2, **more):
    """The spec of a linear model of one number for a learner."""
    return {
        "kind": "linear", "features": d, "components": k, "own": learner.own, "head_layers": learner.head_layers,
        **more,
    }  # fmt: skip


class Federation:
    """Sites that agreed on a model, and what the coordinator asked of them."""

    def __init__(self, sources, spec, *, classes=None, seed=0, engine=InProcess):
        self.agreed = {"model": spec, "classes": classes, "seed": seed}
        self.sites = {site.id: site for site in open_sites(sources, seed=seed)}
        self.engine = engine(list(self.sites.values()), seed)
        self.questions, self.outcomes = [], []

    def solve(self, learner, start=None, cohort=None):
        """Agree, then run a learner; returns what it learnt."""
        start = first_parameters(self.agreed)[0] if start is None else start
        task = Task(start, self.agreed["model"], len(self.sites), cohort=Cohort() if cohort is None else cohort)
        return drive(numbered(self._whole(learner, task)), self._ask)

    def own(self, name):
        """A site's own parameters, as it left them last."""
        state = self.sites[name].memory.versions[0][1]
        return state.get("own")

    def generator(self, name, number):
        """The generator that a site draws from in a round."""
        site = Site(name, None, seed=self.sites[name].seed)
        site.round = number
        return site.rng

    def _whole(self, learner, task):
        yield Round(agree, self.agreed)
        return (yield from learner.solve(task))

    def _ask(self, question):
        outcome = self.engine(question)
        self.questions.append(question)
        self.outcomes.append(outcome)
        return outcome
