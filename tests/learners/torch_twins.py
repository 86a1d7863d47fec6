"""The paper's networks once more, as plain torch modules with autograd, filled from fedspan's flat vectors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Lenet(nn.Module):
    """Convolution, ReLU, pool, twice; then dense layers."""

    def __init__(self, image, channels, sizes):
        super().__init__()
        self.image = image
        self.front = nn.ModuleList([nn.Conv2d(image[0], channels[0], 5), nn.Conv2d(channels[0], channels[1], 5)])
        self.dense = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])

    def features(self, X):
        X = X.view(-1, *self.image)
        for one in self.front:
            X = F.max_pool2d(torch.relu(one(X)), 2)
        return X.flatten(1)


class Words(nn.Module):
    """An embedding, a bidirectional LSTM of two layers; then dense layers on the last states of both ways."""

    def __init__(self, vocabulary, embedding, dimension, sizes):
        super().__init__()
        self.words = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, dimension, num_layers=2, bidirectional=True, batch_first=True)
        self.front = nn.ModuleList([self.words, self.lstm])
        self.dense = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])

    def features(self, X):
        _, (last, _) = self.lstm(self.words(X.long()))
        return torch.cat([last[-2], last[-1]], dim=1)


class Mlp(nn.Module):
    """Dense layers only."""

    def __init__(self, sizes):
        super().__init__()
        self.front = nn.ModuleList()
        self.dense = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])

    def features(self, X):
        return X


def scores(twin, X, masks=()):
    """ReLU between dense layers, and a mask behind each hidden one where masks are given."""
    seen = twin.features(torch.as_tensor(X))
    for number, layer in enumerate(twin.dense):
        seen = layer(seen)
        if layer is not twin.dense[-1]:
            seen = torch.relu(seen)
            if masks:
                seen = seen * masks[number]
    return seen


def slots(twin):
    """Each parameter in the order of fedspan's flat vector; a dense layer's are weights (turned) and bias."""
    return [*twin.front.parameters()], [(layer.weight, layer.bias) for layer in twin.dense]


def fill(twin, values):
    """Set a twin's parameters to a flat vector, in the vector's precision."""
    twin.to(torch.from_numpy(values[:1]).dtype)
    at = 0
    front, dense = slots(twin)
    with torch.no_grad():
        for parameter in front:
            parameter.copy_(torch.tensor(values[at : at + parameter.numel()]).view(parameter.shape))
            at += parameter.numel()
        for weight, bias in dense:
            layer = torch.tensor(values[at : at + weight.numel() + bias.numel()]).view(-1, len(bias))
            weight.copy_(layer[:-1].T)
            bias.copy_(layer[-1])
            at += layer.numel()
    assert at == len(values)
    return twin


def read(twin, what=lambda parameter: parameter):
    """Return a twin's parameters (or their gradients) as a flat vector."""
    front, dense = slots(twin)
    parts = [what(parameter).detach().ravel() for parameter in front]
    parts += [torch.cat([what(weight).detach().T, what(bias).detach()[None]]).ravel() for weight, bias in dense]
    return torch.cat(parts).numpy().copy()


def gradient(twin, X, y):
    """The mean cross entropy's gradient by autograd, as a flat vector, and the loss."""
    loss = F.cross_entropy(scores(twin, X), torch.as_tensor(y))
    twin.zero_grad()
    loss.backward()
    return read(twin, lambda parameter: parameter.grad), loss.item()


def descend(twin, X, y, how, rng, moves):
    """A plain loop of torch.optim.SGD over the parameters that move; batches in the order that ``rng`` draws."""
    X, y = torch.as_tensor(X), torch.as_tensor(np.asarray(y))
    steps = torch.optim.SGD(moves, lr=how.rate, momentum=how.momentum)
    for _ in range(how.epochs):
        order = torch.from_numpy(rng.permutation(len(X))) if how.batch else torch.arange(len(X))
        total = 0.0
        for some in order.split(how.batch or len(X)):
            steps.zero_grad()
            loss = F.cross_entropy(scores(twin, X[some]), y[some])
            loss.backward()
            steps.step()
            total += loss.item() * len(some)
    return total / len(X)
