"""Networks in one flat vector against the same networks as torch modules with autograd and torch.optim."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

from fedspan.learners.model import model_of
from fedspan.learners.rows import Descent, Rows
from tests.learners import torch_twins
from tests.learners.small_networks import KINDS, SPECS, joined, made, rows_for, twin_of
from tests.learners.torch_twins import fill, read

SPLITS = [("head", 1), ("head", 2), ("body", 1), ("body", 2), ("none", 1)]
kinds = pytest.mark.parametrize("kind", KINDS)
splits = pytest.mark.parametrize(("own", "head_layers"), SPLITS)


def moving(twin, own, head_layers, part):
    """The twin's parameters that a descent in a part moves: the head is its last dense layers."""
    head = [p for layer in twin.dense[-head_layers:] for p in layer.parameters()]
    body = [p for p in twin.parameters() if not any(p is one for one in head)]
    if own == "none":
        return [] if part == "own" else body + head
    sides = {"own": head if own == "head" else body, "shared": body if own == "head" else head}
    return body + head if part == "both" else sides[part]


@kinds
@splits
def test_outputs_and_features_are_the_twins(kind, own, head_layers):
    model, shared, mine = made(kind, own, head_layers)
    twin, rows = fill(twin_of(kind), joined(own, shared, mine)), rows_for(kind)
    np.testing.assert_allclose(
        model.outputs(shared, mine, rows.X), torch_twins.scores(twin, rows.X).detach(), rtol=1e-9, atol=1e-12
    )
    seen = twin.features(torch.as_tensor(rows.X))
    for layer in twin.dense[:-head_layers]:
        seen = torch.relu(layer(seen))
    features = model.features(shared, mine, rows.X)
    np.testing.assert_allclose(features, seen.detach(), rtol=1e-9, atol=1e-12)
    for layer in twin.dense[-head_layers:]:
        seen = layer(torch.relu(seen) if layer is not twin.dense[-head_layers] else seen)
    np.testing.assert_allclose(seen.detach(), model.outputs(shared, mine, rows.X), rtol=1e-9, atol=1e-12)


@kinds
@splits
def test_gradients_are_those_of_autograd(kind, own, head_layers):
    model, shared, mine = made(kind, own, head_layers)
    rows = rows_for(kind)
    in_shared, in_mine, loss = model.gradient(shared, mine, rows)
    wanted, wanted_loss = torch_twins.gradient(fill(twin_of(kind), joined(own, shared, mine)), rows.X, rows.y)
    np.testing.assert_allclose(joined(own, in_shared, in_mine), wanted, rtol=1e-8, atol=1e-12)
    assert (in_shared.shape, in_mine.shape) == (shared.shape, mine.shape)
    assert loss == pytest.approx(wanted_loss, rel=1e-10)


@kinds
def test_a_gradient_over_more_rows_than_pass_at_once_is_their_mean(kind, monkeypatch):
    for module in ("descending", "network"):
        monkeypatch.setattr(import_module(f"fedspan.learners.models.{module}"), "CHUNK", 5)
    model, shared, mine = made(kind)
    rows, twin = rows_for(kind), fill(twin_of(kind), joined("head", shared, mine))
    in_shared, in_mine, loss = model.gradient(shared, mine, rows)
    wanted, wanted_loss = torch_twins.gradient(twin, rows.X, rows.y)
    np.testing.assert_allclose(joined("head", in_shared, in_mine), wanted, rtol=1e-8, atol=1e-12)
    assert loss == pytest.approx(wanted_loss, rel=1e-10)
    outputs = torch_twins.scores(twin, rows.X).detach()
    np.testing.assert_allclose(model.outputs(shared, mine, rows.X), outputs, rtol=1e-9, atol=1e-12)
    head = Descent(0.1, 0.5, 4, 1)
    fitted = model.fit(shared, mine, rows, head, np.random.default_rng(0), "own")  # the body passed in pieces
    torch_twins.descend(twin, rows.X, rows.y, head, np.random.default_rng(0), moving(twin, "head", 1, "own"))
    np.testing.assert_allclose(joined("head", fitted.shared, fitted.own), read(twin), rtol=1e-8, atol=1e-11)


@kinds
@splits
@pytest.mark.parametrize("part", ["shared", "own", "both"])
def test_a_descent_is_the_plain_loop_of_torch_optim(kind, own, head_layers, part):
    model, shared, mine = made(kind, own, head_layers)
    rows, how = rows_for(kind), Descent(rate=0.1, momentum=0.5, batch=4, epochs=3)
    twin = fill(twin_of(kind), joined(own, shared, mine))
    fitted = model.fit(shared, mine, rows, how, np.random.default_rng(8), part)
    if own == "none" and part == "own":
        np.testing.assert_array_equal(fitted.shared, shared)
        return
    loss = torch_twins.descend(
        twin, rows.X, rows.y, how, np.random.default_rng(8), moving(twin, own, head_layers, part)
    )
    np.testing.assert_allclose(joined(own, fitted.shared, fitted.own), read(twin), rtol=1e-8, atol=1e-11)
    assert fitted.loss == pytest.approx(loss, rel=1e-9)
    if part == "shared":
        np.testing.assert_array_equal(fitted.own, mine)
    if part == "own":
        np.testing.assert_array_equal(fitted.shared, shared)


@kinds
def test_a_descent_over_all_rows_at_once_needs_no_order(kind):
    model, shared, mine = made(kind)
    rows, how = rows_for(kind), Descent(rate=0.2, momentum=0.9, batch=0, epochs=4)
    twin = fill(twin_of(kind), joined("head", shared, mine))
    fitted = model.fit(shared, mine, rows, how, np.random.default_rng(0), "both")
    again = model.fit(shared, mine, rows, how, np.random.default_rng(1), "both")
    torch_twins.descend(twin, rows.X, rows.y, how, None, list(twin.parameters()))
    np.testing.assert_allclose(joined("head", fitted.shared, fitted.own), read(twin), rtol=1e-8, atol=1e-11)
    np.testing.assert_array_equal(fitted.shared, again.shared)


@kinds
def test_what_is_given_is_never_changed(kind):
    model, shared, mine = made(kind)
    rows = rows_for(kind)
    kept = [part.copy() for part in (shared, mine, rows.X, rows.y)]
    for part in ("own", "shared", "both"):
        model.fit(shared, mine, rows, Descent(epochs=1), np.random.default_rng(0), part)
    model.gradient(shared, mine, rows)
    for part, before in zip((shared, mine, rows.X, rows.y), kept, strict=True):
        np.testing.assert_array_equal(part, before)


@kinds
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_stays_that_of_the_parameters(kind, dtype):
    model, shared, mine = made(kind, dtype=dtype)
    rows = rows_for(kind)
    fitted = model.fit(shared, mine, rows, Descent(), np.random.default_rng(0), "both")
    in_shared, in_mine, _ = model.gradient(shared, mine, rows)
    found = [fitted.shared, fitted.own, in_shared, in_mine, model.outputs(shared, mine, rows.X)]
    assert {array.dtype for array in found} == {np.dtype(dtype)}
    assert model_of({**SPECS[kind]}).start(np.random.default_rng(0))[0].dtype == np.float32


# ---- columns without values ------------------------------------------------------------------------------------


@splits
@pytest.mark.parametrize("part", ["shared", "own", "both"])
def test_columns_that_are_zero_throughout_change_nothing_and_stay(own, head_layers, part):
    """A site's fit leaves them out; the twin does not."""
    model, shared, mine = made("mlp", own, head_layers)
    X, y = rows_for("mlp")
    X[:, [0, 3, 4]] = 0
    X[0, 5] = X[-1, 1] = 0  # these columns have values elsewhere
    how, twin = Descent(rate=0.1, momentum=0.5, batch=4, epochs=2), fill(twin_of("mlp"), joined(own, shared, mine))
    given = shared.copy(), mine.copy()
    fitted = model.fit(shared, mine, Rows(X, y), how, np.random.default_rng(8), part)
    for part_before, part_after in zip(given, (shared, mine), strict=True):
        np.testing.assert_array_equal(part_before, part_after)  # what is given is never changed
    if moves := moving(twin, own, head_layers, part):
        torch_twins.descend(twin, X, y, how, np.random.default_rng(8), moves)
    np.testing.assert_allclose(joined(own, fitted.shared, fitted.own), read(twin), rtol=1e-8, atol=1e-11)
    first, before = (
        joined(own, *parts)[: 8 * 6].reshape(8, 6) for parts in ((fitted.shared, fitted.own), (shared, mine))
    )
    np.testing.assert_array_equal(first[[0, 3, 4]], before[[0, 3, 4]])


def test_rows_of_zeros_only_still_fit_the_biases():
    model, shared, mine = made("mlp")
    X, y = np.zeros((6, 7)), np.array([0, 0, 0, 0, 0, 1])
    fitted = model.fit(shared, mine, Rows(X, y), Descent(epochs=30), np.random.default_rng(0), "both")
    assert (model.outputs(fitted.shared, fitted.own, X).argmax(axis=1) == 0).all()
