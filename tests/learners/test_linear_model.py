"""The linear representation: gradients, exact heads, the three ways to share, descents."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.errors import ConfigurationError, DataError
from fedspan.learners.linear_model import LinearModel
from fedspan.learners.model import model_of
from fedspan.learners.rows import Descent, Rows

D, K = 6, 2
OWNS = ("head", "body", "none")
PARTS = ("shared", "own", "both")
SHAPES = {"head": ((D, K), (K,)), "body": ((K,), (D * K,)), "none": ((D * K + K,), (0,))}


def some_rows(n=15, outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D))
    return Rows(X, rng.standard_normal(n) if outputs == 1 else rng.integers(0, outputs, n))


def model_and_parts(own, outputs=1, seed=1):
    model = LinearModel(D, K, outputs, own, classes=outputs > 1)
    return model, *model.start(np.random.default_rng(seed))


def whole(own, shared, mine, outputs=1):
    """B and W of the two parts, written anew."""
    flat = {"head": [shared, mine], "body": [mine, shared], "none": [shared, mine]}[own]
    values = np.concatenate([part.ravel() for part in flat])
    return values[: D * K].reshape(D, K), values[D * K :].reshape(K, outputs)


def loss_of(own, shared, mine, rows, outputs=1):
    body, head = whole(own, shared, mine, outputs)
    y = rows.y[:, None] if outputs == 1 else np.eye(outputs)[rows.y]
    return 0.5 * np.mean(np.sum((rows.X @ body @ head - y) ** 2, axis=1))


@pytest.mark.parametrize("own", OWNS)
def test_parts_have_the_shapes_that_are_shared(own):
    _, shared, mine = model_and_parts(own)
    assert (shared.shape, mine.shape) == SHAPES[own]
    body, _ = whole(own, shared, mine)
    np.testing.assert_allclose(body.T @ body, np.eye(K), atol=1e-12)


@pytest.mark.parametrize("own", OWNS)
def test_the_three_splits_are_one_model(own):
    """The same B and W give the same outputs, however they are split."""
    body, head = whole("head", *model_and_parts("head")[1:])
    parts = {"head": (body, head.ravel()), "body": (head.ravel(), body.ravel())}
    parts["none"] = (np.concatenate([body.ravel(), head.ravel()]), np.zeros(0))
    model, rows = LinearModel(D, K, own=own), some_rows()
    np.testing.assert_allclose(model.outputs(*parts[own], rows.X), rows.X @ body @ head, rtol=1e-12)
    np.testing.assert_allclose(model.features(*parts[own], rows.X), rows.X @ body, rtol=1e-12)
    fitted = model.fit(*parts[own], rows, Descent(rate=0.0), np.random.default_rng(0), "both")
    for one, other in zip((fitted.shared, fitted.own), parts[own], strict=True):
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("own", OWNS)
@pytest.mark.parametrize("outputs", [1, 3])
def test_gradients_are_those_of_finite_differences(own, outputs):
    model, shared, mine = model_and_parts(own, outputs)
    rows = some_rows(outputs=outputs)
    grad_shared, grad_mine, loss = model.gradient(shared, mine, rows)
    assert loss == pytest.approx(loss_of(own, shared, mine, rows, outputs), rel=1e-12)
    for part, gradient in (("shared", grad_shared), ("mine", grad_mine)):
        given = {"shared": shared, "mine": mine}
        assert gradient.shape == given[part].shape
        for at in np.ndindex(gradient.shape):
            step = np.zeros(gradient.shape)
            step[at] = 1e-6
            up, down = ({**given, part: given[part] + sign * step} for sign in (1, -1))
            slope = (
                loss_of(own, rows=rows, outputs=outputs, **up) - loss_of(own, rows=rows, outputs=outputs, **down)
            ) / 2e-6
            assert gradient[at] == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_head_is_the_least_squares_answer_whatever_the_descent_says(outputs):
    model, shared, mine = model_and_parts("head", outputs)
    rows = some_rows(40, outputs)
    fitted = model.fit(shared, mine, rows, Descent(rate=99.0, epochs=7), np.random.default_rng(0), "own")
    y = rows.y[:, None] if outputs == 1 else np.eye(outputs)[rows.y]
    seen = rows.X @ shared
    np.testing.assert_allclose(fitted.own.reshape(K, outputs), np.linalg.solve(seen.T @ seen, seen.T @ y), rtol=1e-9)
    np.testing.assert_array_equal(fitted.shared, shared)
    assert fitted.loss == pytest.approx(loss_of("head", shared, fitted.own, rows, outputs), rel=1e-12)


def test_a_head_of_fewer_rows_than_components_is_the_shortest_one():
    model, shared, mine = model_and_parts("head")
    rows = some_rows(1)
    head = model.fit(shared, mine, rows, Descent(), np.random.default_rng(0), "own").own
    seen = (rows.X @ shared)[0]
    np.testing.assert_allclose(head, rows.y[0] * seen / (seen @ seen), rtol=1e-10)


@pytest.mark.parametrize(("own", "part"), [(own, part) for own in OWNS for part in PARTS if own + part != "headown"])
@pytest.mark.parametrize("how", [Descent(0.05, 0.5, 4, 3), Descent(0.05, 0.9, 0, 2)], ids=["batches", "all-rows"])
def test_a_descent_is_the_plain_loop(own, part, how):
    """Momentum, batches in the drawn order, and the mean loss met on the last epoch, each row counting as one."""
    model, shared, mine = model_and_parts(own)
    rows = some_rows()
    fitted = model.fit(shared, mine, rows, how, np.random.default_rng(5), part)
    parts, speeds = {"shared": shared, "own": mine}, {"shared": 0.0, "own": 0.0}
    rng = np.random.default_rng(5)
    for _ in range(how.epochs):
        total = 0.0
        order = rng.permutation(len(rows.y)) if how.batch else np.arange(len(rows.y))
        for some in np.split(order, range(how.batch, len(order), how.batch)) if how.batch else [order]:
            few = Rows(rows.X[some], rows.y[some])
            *gradients, loss = model.gradient(parts["shared"], parts["own"], few)
            total += loss * len(some)
            for name, gradient in zip(("shared", "own"), gradients, strict=True):
                if part in (name, "both"):
                    speeds[name] = how.momentum * speeds[name] + gradient
                    parts[name] = parts[name] - how.rate * speeds[name]
    np.testing.assert_allclose(fitted.shared, parts["shared"], rtol=1e-11)
    np.testing.assert_allclose(fitted.own, parts["own"], rtol=1e-11)
    assert fitted.loss == pytest.approx(total / len(rows.y), rel=1e-11)
    assert part == "both" or np.array_equal(
        fitted.own if part == "shared" else fitted.shared, mine if part == "shared" else shared
    )


def test_a_mean_of_bases_is_made_orthonormal_and_other_means_stay():
    mean = np.random.default_rng(2).standard_normal((D, K))
    settled = LinearModel(D, K).settled(mean)
    np.testing.assert_allclose(settled.T @ settled, np.eye(K), atol=1e-12)
    np.testing.assert_allclose(settled @ settled.T @ mean, mean, atol=1e-12)
    for own in ("body", "none"):
        assert LinearModel(D, K, own=own).settled(mean) is mean


def test_first_heads_give_the_body_a_gradient():
    model, shared, mine = model_and_parts("none")
    assert np.linalg.norm(model.gradient(shared, mine, some_rows())[0][: D * K]) > 0.01


@pytest.mark.parametrize("y", [[0, 3, 1], [0, -1, 2]])
def test_labels_of_no_class_are_refused(y):
    model, shared, mine = model_and_parts("head", 3)
    with pytest.raises(DataError, match="1 of 3 labels are none of the 3 classes"):
        model.fit(shared, mine, Rows(np.eye(3, D), np.array(y)), Descent(), np.random.default_rng(0), "own")


def test_rows_too_large_for_a_product_have_a_loss_that_is_no_number():
    model, shared, mine = model_and_parts("head")
    with np.errstate(over="ignore", invalid="ignore"):
        fitted = model.fit(shared, mine, Rows(1.7e308 * np.sign(shared.T), np.ones(K)), Descent(), None, "own")
    assert not np.isfinite(fitted.loss)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"components": 7}, "components lie between 1 and the 6 features, got 7"),
        ({"components": 0}, "components lie between 1 and the 6 features, got 0"),
        ({"components": 2.5}, "components is an integer, got 2.5"),
        ({}, "a linear model also needs components"),
        ({"components": 2, "own": "heads"}, 'own is "head", "body" or "none", got \'heads\''),
        ({"components": 2, "component": 3}, "a linear model has no setting 'component'; did you mean 'components'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(spec, text):
    with pytest.raises(ConfigurationError, match=text):
        model_of({"kind": "linear", "features": D, **spec})


def test_parameters_of_another_model_are_refused():
    model = LinearModel(features=6, components=2)
    with pytest.raises(ConfigurationError, match=r"a basis of 6 x 2 and a head of 2 x 1 .* shapes \(3, 2\) and \(2,\)"):
        model.outputs(np.zeros((3, 2)), np.zeros(2), np.zeros((4, 6)))
    with pytest.raises(ConfigurationError, match="were they learnt with another model"):
        model.outputs(np.zeros((6, 2)), np.zeros(7), np.zeros((4, 6)))
