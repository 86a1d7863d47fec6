"""The plain loop that `benchmarks.learner_round` races: a torch module, torch.optim.SGD, one site after another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.encoding import Array
from fedspan.learners import FedRep
from fedspan.learners.site import first_parameters

State = dict[str, Tensor]


class PlainLoop:
    """One round of FedRep or LG-FedAvg from first parameters; batches in the order that fedspan's sites draw."""

    def __init__(self, learner: Any, agreed: dict[str, Any], sources: dict[str, Any], dtype: Any) -> None:
        self._learner = learner
        self._rows = {n: (torch.from_numpy(s.X.astype(dtype)), torch.from_numpy(s.y)) for n, s in sources.items()}
        self._net = module(agreed["model"]).to(self._rows[min(sources)][0].dtype)
        layers = [layer for layer in self._net if any(True for _ in layer.parameters())]
        head = list(nn.Sequential(*layers[-learner.head_layers :]).parameters())
        self._head, self._body = head, [p for p in self._net.parameters() if not any(p is one for one in head)]
        shared, own = first_parameters(agreed)
        load(self._net, np.concatenate([own, shared] if learner.own == "body" else [shared, own]))
        self._first = [p.detach().clone() for p in self._net.parameters()]
        self._shared = self._head if learner.own == "body" else self._body

    def round(self, **options: Any) -> Array:
        """Return the mean of what the sites share after one round."""
        total = [torch.zeros_like(p) for p in self._shared]
        for name, (X, y) in self._rows.items():
            with torch.no_grad():
                for parameter, value in zip(self._net.parameters(), self._first, strict=True):
                    parameter.copy_(value)
            self._train(X, y, order_of(name), options)
            with torch.no_grad():
                for part, parameter in zip(total, self._shared, strict=True):
                    part += parameter
        return flat([part / len(self._rows) for part in total])

    def fused_round(self) -> Array:
        """The same with SGD's loop over parameters in one kernel."""
        return self.round(fused=True)

    def _train(self, X: Tensor, y: Tensor, rng: np.random.Generator, options: Any) -> None:
        if isinstance(self._learner, FedRep):
            self._descend(self._head, self._body, self._learner.head_epochs, X, y, rng, options)
            self._descend(self._body, self._head, self._learner.epochs, X, y, rng, options)
        else:
            self._descend([*self._body, *self._head], [], self._learner.epochs, X, y, rng, options)

    def _descend(
        self, moving: list[Any], frozen: list[Any], epochs: int, X: Tensor, y: Tensor, rng: np.random.Generator,
        options: Any,
    ) -> None:  # fmt: skip
        for parameter in moving:
            parameter.requires_grad_(True)
        for parameter in frozen:
            parameter.requires_grad_(False)
        descent = torch.optim.SGD(moving, lr=self._learner.rate, momentum=self._learner.momentum, **options)
        for _ in range(epochs):
            for batch in batches(len(X), self._learner.batch, rng):
                descent.zero_grad()
                F.cross_entropy(self._net(X[batch]), y[batch]).backward()
                descent.step()


def order_of(name: str) -> np.random.Generator:
    """Return the generator that a site of fedspan draws its batches from, in round 1 of a run with seed 0."""
    return np.random.default_rng([0, int.from_bytes(name.encode(), "little"), 1])


def batches(rows: int, size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yield the numbers of all rows once, in an order drawn anew."""
    yield from torch.from_numpy(rng.permutation(rows)).split(size)


def module(spec: dict[str, Any]) -> nn.Sequential:
    """Return the MLP or LeNet-5 of a spec as a torch module."""
    layers: list[nn.Module] = []
    if spec["kind"] == "lenet5":
        layers += [nn.Unflatten(1, spec["image"])]
        for inputs, outputs in ((spec["image"][0], 64), (64, 64)):
            layers += [nn.Conv2d(inputs, outputs, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten()]
        sizes = [64 * 4 * 4, 120, 64, spec["classes"]]
    else:
        sizes = [spec["features"], *spec["hidden"], spec["classes"]]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def load(net: nn.Sequential, values: Array) -> None:
    """Set a module's parameters to those of fedspan's flat vector: of a dense layer, the bias is the last row."""
    at = 0
    with torch.no_grad():
        for layer in net:
            weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
            if weight is None or bias is None:
                continue
            size = weight.numel() + bias.numel()
            part, at = torch.from_numpy(values[at : at + size]), at + size
            if isinstance(layer, nn.Linear):
                weight.copy_(part[: weight.numel()].view(weight.T.shape).T)
            else:
                weight.copy_(part[: weight.numel()].view(weight.shape))
            bias.copy_(part[weight.numel() :])


def flat(parameters: list[Tensor]) -> Array:
    """Return a module's parameters, weights and biases in turn, in fedspan's order."""
    turned = [part.T if part.ndim == 2 else part for part in parameters]
    return torch.cat([part.reshape(-1) for part in turned]).detach().numpy()
