"""A study file with ``estimator = "representation"``: sites with labels, a model, and what learns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from fedspan.data.label_column import TASKS, read_labelled
from fedspan.data.labelled import Labelled
from fedspan.encoding import Array
from fedspan.engines import VirtualTime
from fedspan.engines.gossip import NO_REPRESENTATIONS
from fedspan.errors import ConfigurationError, DataError, nearest
from fedspan.learners import LEARNERS
from fedspan.learners.choices import NAMES, STAGED, learner_of, model_spec
from fedspan.learning import Learning, check_private_start
from fedspan.privacy import GaussianPrivacy
from fedspan.rounds import Cohort
from fedspan.solvers import Doubling
from fedspan.study_file import (
    SiteEntry,
    cohort_of,
    content_of,
    engine_of,
    prefixed,
    privacy_of,
    raw_study,
    seed_of,
    sites_of,
)
from fedspan.study_schema import COHORT, KEYS, LABELLED, LABELLED_KEYS, LAYOUT, PRIVACY
from fedspan.toml_tables import NUMBER, TABLE, TEXT, TEXTS, WHOLE, Kind, Table, as_hinted, fitting, shown

ESTIMATOR = "representation"
_KEYS: dict[str, tuple[str, ...]] = {
    "data": (*LABELLED["data"], "drop", *(key for key in LAYOUT if key != "triples")),
    "solve": ("estimator", "n_components", "solver", "settings", *LABELLED["solve"]),
    "participation": tuple(COHORT), "privacy": tuple(PRIVACY), "run": ("engine", "speeds", "seed", "folder"),
}  # fmt: skip
_ELSEWHERE = {key: f"[{table}]" for table, keys in _KEYS.items() for key in keys}
_OTHERS = {
    key: f'[{table}] of studies with estimator = "pca" or "svd"' for table, keys in KEYS.items() for key in keys
} | _ELSEWHERE
_SPLIT = 6
"""What test rows are drawn with, beside the seed and the site's name."""
_LABEL = Kind("the name of a column, or its number", lambda v: TEXT.fits(v) or WHOLE.fits(v))


@dataclass(frozen=True, kw_only=True)
class LearningFile:
    """What a study of labelled rows says, checked."""

    path: Path
    """The file itself."""
    name: str
    sites: dict[str, SiteEntry]
    drop: tuple[str, ...]
    label: str | int
    """The column to predict: its name, or where columns have none, its number."""
    task: str | None
    test_fraction: float
    """The part of each site's rows that nothing is learnt from, where it has no file of such rows."""
    n_components: int | None
    solver: str
    learner: Any
    model: dict[str, Any]
    start: str
    tune: int
    evaluate_every: int | None
    cohort: Cohort
    engine: str
    seed: int
    folder: Path
    """Where runs are kept."""
    privacy: GaussianPrivacy | None = None
    speeds: VirtualTime | None = None
    estimator: str = field(default=ESTIMATOR, init=False)

    @property
    def execution(self) -> str | VirtualTime:
        """The engine that `fedspan.learning.learn` takes."""
        return self.engine if self.speeds is None else self.speeds

    def study(self) -> Learning:
        """Return the study that `fedspan.learning.learn` takes."""
        return Learning(
            learner=self.learner, model=self.model, start=self.start, cohort=self.cohort, seed=self.seed,
            evaluate_every=self.evaluate_every, tune=self.tune,
        )  # fmt: skip

    def changes(self, before: LearningFile) -> list[str]:
        """Return what differs from another reading of the study and may change a run's answer."""
        names = (f.name for f in fields(self) if f.name not in ("path", "name", "engine", "folder"))
        return [name for name in names if getattr(self, name) != getattr(before, name)]

    def open_sources(self) -> dict[str, Labelled]:
        """Read every site's rows, and set test rows aside. What goes wrong names the site.

        Columns are brought into the order of the first site.
        """
        sources: dict[str, Labelled] = {}
        wanted: tuple[str, ...] | None = None
        for name, site in self.sites.items():
            with prefixed(f"site {name!r}: "):
                X, y, columns = _in_order(self._read(site.path, site), wanted)
                wanted = columns if wanted is None else wanted
                test: tuple[Array, Array] | None
                if site.test is not None:
                    test = _in_order(self._read(site.test, site), columns)[:2]
                else:
                    learnt, left = split(len(y), self.test_fraction, self.seed, name)
                    test = None if not len(left) else (X[left], y[left])
                    X, y = X[learnt], y[learnt]
                sources[name] = Labelled(X, y, test=test, columns=columns)
        return sources

    def _read(self, path: Path, site: SiteEntry) -> tuple[Array, Array, tuple[str, ...] | None]:
        layout = {"delimiter": site.delimiter, "decimal": site.decimal, "header": site.header}
        return read_labelled(path, self.label, drop=(*self.drop, *site.drop), task=self.task, **layout)


def split(rows: int, fraction: float, seed: int, name: str) -> tuple[Array, Array]:
    """Return the numbers of the rows to learn from, and of those set aside; drawn from the seed and the site's name.

    >>> [len(part) for part in split(10, 0.2, 0, "berlin")]
    [8, 2]
    """
    if fraction == 0:
        return np.arange(rows), np.arange(0)
    if rows < 2:
        raise DataError(f"test_fraction = {fraction} of {rows} row leaves none to learn from, or none to test")
    aside = min(max(round(fraction * rows), 1), rows - 1)
    order = np.random.default_rng([seed, _SPLIT, int.from_bytes(name.encode(), "little")]).permutation(rows)
    return np.sort(order[aside:]), np.sort(order[:aside])


def load_learning(path: str | Path) -> LearningFile:
    """Read and check the file of a study of labelled rows.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "study.toml")
    ...     text = '[sites]\\noslo = "oslo.csv"\\n[data]\\nlabel = "y"\\n[solve]\\nestimator = "representation"\\n'
    ...     _ = file.write_text(text)
    ...     study = load_learning(file)
    >>> study.label, study.solver, study.model
    ('y', 'fedrep', {'kind': 'linear', 'components': 2})
    """
    return parse_learning(content_of(Path(path)), Path(path))


def parse_learning(content: bytes, path: Path) -> LearningFile:
    """Check the content of such a file that stands, or stood, at ``path``."""
    with prefixed(f"{path}: "):
        return _learning_of(raw_study(content), path)


def is_learning(path: Path) -> bool:
    """Whether a study file asks for a representation. One that cannot be read does not: others say why."""
    try:
        solve = raw_study(content_of(path)).get("solve")
    except ConfigurationError:
        return False
    return isinstance(solve, dict) and solve.get("estimator") == ESTIMATOR


def _in_order(
    read: tuple[Array, Array, tuple[str, ...] | None], wanted: tuple[str, ...] | None
) -> tuple[Array, Array, tuple[str, ...] | None]:
    """Return rows with their columns in the order that is wanted; others than those come as they are."""
    X, y, columns = read
    if columns is None or wanted is None or sorted(columns) != sorted(wanted):
        return read
    return X[:, [columns.index(column) for column in wanted]], y, wanted


# ---- the schema ----------------------------------------------------------------------------------


def _learning_of(raw: dict[str, Any], path: Path) -> LearningFile:
    top = Table(raw, "the top of the file", ("name", "sites", *_KEYS), _OTHERS)
    tables = {name: Table(raw.get(name, {}), f"[{name}]", keys, _OTHERS) for name, keys in _KEYS.items()}
    data, solve, run = tables["data"], tables["solve"], tables["run"]
    if solve.get("estimator", TEXT, "pca") != ESTIMATOR:
        raise ConfigurationError(f'[solve] estimator is not "{ESTIMATOR}"; this study has no labels to learn from')
    sites = sites_of(raw, data, path.parent, keys=LABELLED_KEYS)
    engine, speeds = engine_of(run, sites)
    if engine == "gossip":
        raise ConfigurationError(f"[run] {NO_REPRESENTATIONS}")
    wanted, name = solve.get("n_components", WHOLE), solve.get("solver", TEXT, "fedrep")
    with prefixed("[solve.model] "):
        model = model_spec({"kind": "linear", **solve.get("model", TABLE, {})}, wanted)
    study = LearningFile(
        path=path, name=top.get("name", TEXT, path.stem), sites=sites, drop=tuple(data.get("drop", TEXTS, ())),
        label=_label(data), task=_task(data), test_fraction=_fraction(data), n_components=wanted, solver=name,
        learner=_learner(name, solve.get("settings", TABLE, {})), model=model, start=solve.get("start", TEXT, "random"),
        tune=solve.get("tune", WHOLE, 0), evaluate_every=solve.get("evaluate_every", WHOLE),
        cohort=cohort_of(tables["participation"], sites), engine=engine, seed=seed_of(run),
        folder=path.parent / run.get("folder", TEXT, "runs"),
        privacy=privacy_of(tables["privacy"]) if "privacy" in raw else None, speeds=speeds,
    )  # fmt: skip
    with prefixed("[solve] "):
        study.study()
    if study.privacy is not None:
        with prefixed("[privacy] "):
            check_private_start(study.start, study.privacy)
    return study


def _label(data: Table) -> str | int:
    label: str | int | None = data.get("label", _LABEL)
    if label is None:
        raise ConfigurationError('[data] label is missing: name the column to predict, as in label = "outcome"')
    return label


def _task(data: Table) -> str | None:
    task: str | None = data.get("task", TEXT)
    if task is not None and task not in TASKS:
        raise ConfigurationError(f"[data] task = {shown(task)}: {nearest(task, TASKS)}")
    return task


def _fraction(data: Table) -> float:
    fraction = float(data.get("test_fraction", NUMBER, 0.0))
    if not 0 <= fraction < 1:
        raise ConfigurationError(f"[data] test_fraction = {fraction}: expected a number in [0, 1)")
    return fraction


def _learner(name: str, given: Mapping[str, Any]) -> Any:
    """Return what learns, with its settings; of doubling those of its stage too."""
    if name not in NAMES:
        raise ConfigurationError(f"[solve] there is no learner {name!r}; {nearest(name, NAMES)}")
    settings = _settings("[solve.settings]", name, given)
    with prefixed("[solve.settings] "):
        if name in STAGED:
            return STAGED[name](**settings)
        return Doubling(**settings) if name == "doubling" else LEARNERS[name](**settings)


def _settings(where: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    hints = _hints(name)
    known = [*hints, *(("stage", "stage_settings") if name == "doubling" else ())]
    for key in given:
        if key not in known:
            raise ConfigurationError(f"{where} {name} has no setting {key!r}; {nearest(key, known)}")
    settings = {key: as_hinted(f"{where} {key}", value, hints[key]) for key, value in given.items() if key in hints}
    if name == "doubling":
        stage = fitting(f"{where} stage", given.get("stage", "fedrep"), TEXT)
        if stage not in LEARNERS:
            raise ConfigurationError(f"{where} stage: there is no learner {stage!r}; {nearest(stage, LEARNERS)}")
        inner = fitting(f"{where} stage_settings", given.get("stage_settings", {}), TABLE)
        with prefixed(f"{where} stage_settings: "):
            settings["stage"] = LEARNERS[stage](**_settings(f"{where} stage_settings", stage, inner))
    return settings


def _hints(name: str) -> dict[str, Any]:
    """Return the settings of a learner, each with its type."""
    if name in STAGED:
        part = learner_of(name).stage
        return {"n0": int, "stage_rounds": int, **_of_class(type(part))}
    hints = _of_class(Doubling if name == "doubling" else LEARNERS[name])
    hints.pop("stage", None)
    return hints


def _of_class(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind) if one.init}
