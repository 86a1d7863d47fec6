"""What networks leave to chance: dropout, augmentation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedspan.learners.rows import Descent
from tests.learners import torch_twins
from tests.learners.small_networks import joined, made, rows_for, twin_of
from tests.learners.torch_twins import fill, read

# ---- chance ----------------------------------------------------------------------------------------------------


def test_dropout_leaves_out_hidden_units_as_often_as_it_says_and_keeps_the_mean():
    from fedspan.learners.models.dense import drop

    values = torch.full((200, 500), 3.0)
    drop(values, 0.6, torch.Generator().manual_seed(0))
    out = float((values == 0).double().mean())
    assert out == pytest.approx(0.6, abs=5 * np.sqrt(0.24 / 1e5))
    kept = values[values != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 3.0 / 0.4))
    assert float((values == 0).double().mean(0).std()) == pytest.approx(np.sqrt(0.24 / 200), rel=0.15)  # each alone


def test_gradients_under_dropout_are_those_of_autograd_with_the_same_masks(monkeypatch):
    """One step over all rows; the masks that the network drew are handed to the twin."""
    masks = []

    def noted(values, dropout, chance):
        mask = torch.empty_like(values).bernoulli_(1 - dropout, generator=chance) / (1 - dropout)
        masks.append(mask.clone())
        values *= mask

    monkeypatch.setattr("fedspan.learners.models.dense.drop", noted)
    model, shared, mine = made("lenet5", own="none", dropout=0.6)
    rows, twin = rows_for("lenet5"), fill(twin_of("lenet5"), shared)
    fitted = model.fit(shared, mine, rows, Descent(0.1, 0.0, 0, 1), np.random.default_rng(0), "both")
    assert [mask.shape for mask in masks] == [(13, 6), (13, 5)]
    assert 0.2 < float((masks[0] == 0).double().mean()) < 0.95
    loss = torch.nn.functional.cross_entropy(torch_twins.scores(twin, rows.X, masks), torch.as_tensor(rows.y))
    loss.backward()
    gradient = read(twin, lambda parameter: parameter.grad)
    np.testing.assert_allclose(fitted.shared, shared - 0.1 * gradient, rtol=1e-8, atol=1e-11)
    assert fitted.loss == pytest.approx(loss.item(), rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("lenet5", {"dropout": 0.5}), ("lenet5", {"augment": True}), ("bilstm", {"dropout": 0.5})],
    ids=["dense-dropout", "augment", "lstm-dropout"],
)
def test_training_is_left_to_chance_in_either_part_and_nothing_else_is(kind, more):
    plain, (model, shared, mine) = made(kind, dropout=0.0)[0], made(kind, **more)
    rows = rows_for(kind)
    np.testing.assert_array_equal(model.outputs(shared, mine, rows.X), plain.outputs(shared, mine, rows.X))
    for one, other in zip(model.gradient(shared, mine, rows), plain.gradient(shared, mine, rows), strict=True):
        np.testing.assert_array_equal(one, other)
    how = Descent(rate=0.5, batch=0, epochs=3)  # no order of batches is drawn: what differs is chance alone
    for part in ("own", "shared"):
        fits = [model.fit(shared, mine, rows, how, np.random.default_rng(seed), part) for seed in (1, 1, 2)]
        first, same, other = (joined("head", fit.shared, fit.own) for fit in fits)
        np.testing.assert_array_equal(first, same)
        assert np.abs(same - other).max() > 1e-6
        still = plain.fit(shared, mine, rows, how, np.random.default_rng(1), part)
        assert np.abs(joined("head", still.shared, still.own) - same).max() > 1e-6


def test_augmentation_shifts_by_up_to_four_pixels_and_mirrors_half():
    """Each image has one bright pixel in the middle: where it comes out tells shift and mirror apart."""
    from fedspan.learners.models.fronts import augmented

    n, side = 8000, 20
    X = torch.zeros(n, 2, side, side)
    X[:, 0, 10, 6], X[:, 1, 10, 7] = 1.0, 2.0  # channels move together; a mirror turns them round
    out = augmented(X, np.random.default_rng(0))
    assert out.shape == X.shape
    assert out.dtype == X.dtype
    rows, ones, twos = out.nonzero()[:, 0], (out[:, 0] == 1).nonzero(), (out[:, 1] == 2).nonzero()
    assert len(ones) == len(twos) == n  # nothing is lost in the middle
    assert len(rows) == 2 * n
    np.testing.assert_array_equal(ones[:, 1], twos[:, 1])
    step = (twos[:, 2] - ones[:, 2]).numpy()
    assert set(step.tolist()) == {1, -1}
    mirrored = step == -1
    assert mirrored.mean() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(n))
    down = ones[:, 1].numpy() - 10
    across = np.where(mirrored, (side - 1 - 6) - ones[:, 2].numpy(), 6 - ones[:, 2].numpy())
    for moved in (down, across):
        shares = np.unique(moved, return_counts=True)
        assert shares[0].tolist() == list(range(-4, 5))
        np.testing.assert_allclose(shares[1] / n, 1 / 9, atol=5 * np.sqrt(8 / 81 / n))
    assert abs(np.corrcoef(down, across)[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(down, mirrored)[0, 1]) < 5 / np.sqrt(n)


def test_what_a_crop_has_beyond_the_image_is_zero():
    from fedspan.learners.models.fronts import augmented

    out = augmented(torch.ones(300, 1, 16, 16), np.random.default_rng(1))
    inside = out.sum(dim=(1, 2, 3)).numpy()
    assert set(inside.tolist()) <= {float(a * b) for a in range(12, 17) for b in range(12, 17)}
    assert inside.min() < 256
