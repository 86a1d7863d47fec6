"""What is worth a warning in a learnt representation."""

from __future__ import annotations

from typing import Any

from sklearn.exceptions import ConvergenceWarning

from fedspan.errors import few

Remark = tuple[type[Warning], str]


def remarks_on(model: Any) -> list[Remark]:
    """Return what is to be said of a fitted `FederatedRepresentation`, each with the kind of warning that it is."""
    labels = [] if model.classes_ is None else _about_labels(model)
    return [*((UserWarning, text) for text in labels), *((ConvergenceWarning, text) for text in _about_the_run(model))]


def _about_labels(model: Any) -> list[str]:
    remarks, rows = [], sum(site["rows"] for site in model.sites_.values())
    if 2 * len(model.classes_) > max(rows, 20):
        remarks.append(
            f"y has {len(model.classes_)} different labels at {rows} rows, each of them taken as a class; if they are "
            f"numbers to come near to, give them as floating point"
        )
    if model.single_class_sites_:
        sites = _sites(model.single_class_sites_)
        remarks.append(f"one class only at {sites}: what is their own can tell nothing else")
    if model.unseen_labels_:
        unseen = sum(model.site_scores_[name]["unseen"] for name in model.unseen_labels_)
        labels = sorted({label for unknown in model.unseen_labels_.values() for label in unknown})
        remarks.append(
            f"{unseen} test rows at {_sites(list(model.unseen_labels_))} have labels that no site had in training "
            f"({few([repr(label) for label in labels])}): they count as wrong"
        )
    return remarks


def _about_the_run(model: Any) -> list[str]:
    remarks = []
    if model.diverged_:
        remarks.append(
            f"the learner diverged {sum(model.diverged_.values())} times at {_sites(sorted(model.diverged_))}, whose "
            f"parameters were then left out; give it a smaller rate, or scale the rows"
        )
    if model.converged_ is False:
        remarks.append(f"the loss still fell after {model.n_rounds_} rounds; give the learner more, or a larger stall")
    return remarks


def _sites(names: list[str]) -> str:
    return f"{'site' if len(names) == 1 else f'{len(names)} sites:'} {few(names)}"
