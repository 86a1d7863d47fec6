"""How well each site is predicted: a table by site, and how evenly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class SiteScores(dict[str, dict[str, Any]]):
    """The figures of each site by its name: ``rows``, ``on`` which rows, and ``accuracy`` (classes) or ``mse``.

    ``on`` is ``"test"`` or ``"training"``. Of classes also ``unseen``, how many rows have a label that no site had in
    training (none of them can be right), and ``new``, how many one that this site had not. Prints as a table.

    >>> told = {
    ...     "a": {"rows": 4, "right": 3, "unseen": 0, "new": 0},
    ...     "b": {"rows": 9, "right": 9, "unseen": 0, "new": 0},
    ... }
    >>> print(SiteScores.of(told, {"a": "test", "b": "training"}))
    site  rows  accuracy
    a        4     75.0%
    b        9    100.0%  (training rows)
    >>> SiteScores.of(told, {"a": "test", "b": "test"}).fairness["spread"]
    0.25
    """

    @classmethod
    def of(cls, told: Mapping[str, Mapping[str, Any]], on: Mapping[str, str]) -> SiteScores:
        """Return what sites told when they were asked to measure (`learn.evaluate`)."""
        table = cls()
        for name, figures in sorted(told.items()):
            rows = int(figures["rows"])
            score = (
                {"accuracy": figures["right"] / rows, "unseen": int(figures["unseen"]), "new": int(figures["new"])}
                if "right" in figures
                else {"mse": float(figures["squares"]) / rows}
            )
            table[name] = {"rows": rows, **score, "on": on[name]}
        return table

    @property
    def measure(self) -> str:
        """``"accuracy"``, of which more is better, or ``"mse"``, of which less is."""
        return "accuracy" if all("accuracy" in figures for figures in self.values()) else "mse"

    @property
    def ranked(self) -> list[str]:
        """The sites, the worst first; by name where they are equal."""
        sign = 1 if self.measure == "accuracy" else -1
        return sorted(self, key=lambda name: (sign * self[name][self.measure], name))

    @property
    def fairness(self) -> dict[str, Any]:
        """The worst, the median and the best site's figure, and how far they are apart; every site counts as one.

        Nothing where there are no sites, as in a model saved without heads.
        """
        if not self:
            return {}
        figures = [self[name][self.measure] for name in self]
        worst, best = self.ranked[0], self.ranked[-1]
        with np.errstate(invalid="ignore"):  # a site whose error is infinite is as far from the others as can be
            deviation = float(np.std(figures))
        ends = {"worst": self[worst][self.measure], "best": self[best][self.measure]}
        return {
            "measure": self.measure, **ends, "worst_site": worst, "best_site": best,
            "median": float(np.median(figures)), "mean": float(np.mean(figures)),
            "spread": abs(ends["best"] - ends["worst"]), "deviation": deviation,
        }  # fmt: skip

    def remark(self, name: str) -> str:
        """Return what is to be said of one site beside its figures."""
        figures, said = self[name], []
        if figures["on"] == "training":
            said.append("training rows")
        unseen = figures.get("unseen", 0)
        if elsewhere := figures.get("new", 0) - unseen:
            said.append(f"{elsewhere} with labels that only other sites had in training")
        if unseen:
            said.append(f"{unseen} with labels that no site had in training")
        return "; ".join(said)

    def shown(self, name: str) -> str:
        """Return one site's figure as text."""
        figures = self[name]
        return f"{figures['accuracy']:.1%}" if "accuracy" in figures else f"{figures['mse']:.4g}"

    def __str__(self) -> str:
        """Return the table as text."""
        head = ("site", "rows", self.measure)
        cells = [(name, str(self[name]["rows"]), self.shown(name)) for name in self]
        wide = [max(len(row[i]) for row in (head, *cells)) for i in range(3)]
        lines = [f"{a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}" for a, b, c in (head, *cells)]
        said = ["", *(self.remark(name) for name in self)]
        return "\n".join(line + (f"  ({text})" if text else "") for line, text in zip(lines, said, strict=True))
