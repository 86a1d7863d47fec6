"""Networks: first parameters, the paper's sizes, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedspan.errors import ConfigurationError, DataError
from fedspan.learners.model import model_of
from fedspan.learners.rows import Descent, Rows
from tests.learners.small_networks import made

# ---- first parameters, settings, rows ----------------------------------------------------------------------------


def test_first_parameters_are_as_torch_draws_them():
    """Uniform within 1 / sqrt(inputs); an embedding is normal."""
    model = model_of({"kind": "mlp", "features": 400, "classes": 10, "hidden": [300], "own": "none"})
    flat = model.start(np.random.default_rng(0))[0].astype(float)
    first, second = flat[: 401 * 300], flat[401 * 300 :]
    for part, inputs in ((first, 400), (second, 300)):
        bound = 1 / np.sqrt(inputs)
        assert np.abs(part).max() <= bound * (1 + 1e-6)
        assert part.std() == pytest.approx(bound / np.sqrt(3), rel=0.05)
    words = {"kind": "bilstm", "features": 3, "classes": 2, "vocabulary": 500, "embedding": 20, "dimension": 16}
    flat = model_of({**words, "own": "none"}).start(np.random.default_rng(0))[0].astype(float)
    assert flat[: 500 * 20].std() == pytest.approx(1, rel=0.05)
    lstm = flat[500 * 20 : -(33 * 5 + 6 * 2)]
    assert np.abs(lstm).max() <= 1 / np.sqrt(16) * (1 + 1e-6)
    assert lstm.std() == pytest.approx(1 / np.sqrt(3 * 16), rel=0.05)
    image = {"kind": "lenet5", "features": 768, "image": [3, 16, 16], "classes": 2, "own": "none"}
    flat = model_of(image).start(np.random.default_rng(0))[0].astype(float)
    conv = flat[: 64 * 3 * 25 + 64]
    assert np.abs(conv).max() <= 1 / np.sqrt(75) * (1 + 1e-6)
    assert conv.std() == pytest.approx(1 / np.sqrt(3 * 75), rel=0.05)


def test_the_papers_sizes_are_the_defaults():
    """Appendix C: parameters counted by hand."""

    def count(**spec):
        shared, own = model_of({"own": "head", "head_layers": 1, **spec}).start(np.random.default_rng(0))
        return len(shared), len(own)

    assert count(kind="mlp", features=784, classes=10) == (785 * 512 + 513 * 256 + 257 * 64, 650)
    cifar = {"kind": "lenet5", "features": 3072, "image": [3, 32, 32]}
    assert count(**cifar, classes=10) == (64 * 76 + 64 * 1601 + (64 * 25 + 1) * 120 + 121 * 64, 650)
    wide = {"channels": [64, 128], "hidden": [256, 128], "dropout": 0.6}
    assert count(**cifar, **wide, classes=100) == (
        64 * 76 + 128 * 1601 + (128 * 25 + 1) * 256 + 257 * 128, 129 * 100
    )  # fmt: skip
    lstm = 2 * 4 * 256 * (100 + 256 + 2) + 2 * 4 * 256 * (512 + 256 + 2)
    assert count(kind="bilstm", features=30, classes=2) == (10000 * 100 + lstm + 513 * 5, 12)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "mpl"}, "there is no model 'mpl'; did you mean 'mlp'"),
        ({"hiden": [3]}, "kind 'mlp' has no setting 'hiden'; did you mean 'hidden'"),
        ({"hidden": "8"}, "hidden is a list of integers, got '8'"),
        ({"hidden": [8, 0]}, "each of hidden is at least 1, got 0"),
        ({"classes": 2.0}, r"classes is an integer, got 2.0 \(float\)"),
        ({"own": "heads"}, 'own is "head", "body" or "none", got \'heads\''),
        ({"head_layers": 3}, "the last 1 to 1 can be its head, got 3; more in hidden makes room for more"),
        ({"hidden": []}, "hidden is empty, and a body needs a layer of its own"),
        ({"head_layers": 0}, "the last 1 to 1 can be its head, got 0"),
        ({"kind": "lenet5", "hidden": [4]}, "a network of kind 'lenet5' also needs image"),
        ({"kind": "lenet5", "image": [1, 2, 3]}, r"their product the 7 features of a row; got \[1, 2, 3\]"),
        ({"kind": "lenet5", "image": [7]}, r"image is \[channels, height, width\]"),
        ({"kind": "lenet5", "image": [1, 7, 1]}, "images of 16 x 16 or more"),
        ({"kind": "lenet5", "image": [1, 16, 16], "features": 256, "channels": [4]}, "channels are two numbers"),
        ({"kind": "lenet5", "image": [1, 16, 16], "features": 256, "dropout": 1.0}, r"dropout lies in \[0, 1\)"),
        ({"kind": "lenet5", "image": [1, 16, 16], "features": 256, "augment": 1}, "augment is true or false, got 1"),
        ({"kind": "bilstm", "vocabulary": 0}, "vocabulary is at least 1, got 0"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_a_network_are_refused(change, text):
    spec = {"kind": "mlp", "features": 7, "classes": 3, "hidden": [6], **change}
    if spec["kind"] == "bilstm":
        del spec["hidden"]
    with pytest.raises(ConfigurationError, match=text):
        model_of(spec)


def test_all_dense_layers_may_be_the_head_behind_a_front():
    assert made("lenet5", head_layers=3)[2].size == 5 * 6 + 7 * 5 + 6 * 3
    with pytest.raises(ConfigurationError, match="the last 1 to 2 can be its head"):
        made("mlp", head_layers=3)


@pytest.mark.parametrize("y", [[0, 3, 1], [0, -1, 2]])
def test_labels_of_no_class_are_refused_by_networks(y):
    model, shared, mine = made("mlp")
    with pytest.raises(DataError, match="1 of 3 labels are none of the 3 classes"):
        model.fit(shared, mine, Rows(np.eye(3, 7), np.array(y)), Descent(), np.random.default_rng(0), "own")


@pytest.mark.parametrize("X", [np.ones((3, 6)), np.ones(7)], ids=["width", "flat"])
def test_rows_of_another_width_are_refused(X):
    model, shared, mine = made("mlp")
    with pytest.raises(DataError, match="this network reads rows of 7 numbers, got an array of shape"):
        model.outputs(shared, mine, X)
    with pytest.raises(DataError, match="this network reads rows of 7 numbers, got an array of shape"):
        model.fit(shared, mine, Rows(X, np.zeros(len(X), int)), Descent(), np.random.default_rng(0), "own")


def test_parameters_of_another_network_are_refused():
    model, shared, mine = made("mlp")
    with pytest.raises(ConfigurationError, match="this network has 101 parameters, got 80 shared and 18 of a site's"):
        model.outputs(shared[:-3], mine, np.ones((2, 7)))


@pytest.mark.parametrize("word", [11.0, -1.0])
def test_words_outside_the_vocabulary_are_refused(word):
    model, shared, mine = made("bilstm")
    with pytest.raises(DataError, match="numbers of words, 0 to 10; got"):
        model.outputs(shared, mine, np.full((2, 4), word))


def test_a_part_of_a_word_is_refused():
    model, shared, mine = made("bilstm")
    with pytest.raises(DataError, match="whole numbers; these have fractions"):
        model.outputs(shared, mine, np.full((2, 4), 1.5))
