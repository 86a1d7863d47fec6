"""One tree of errors, as its module draws it."""

from __future__ import annotations

import inspect
import re

import pytest

import fedspan.errors
from fedspan.errors import FedspanError, nearest

CLASSES = {name: c for name, c in vars(fedspan.errors).items() if inspect.isclass(c) and issubclass(c, Exception)}


def test_every_error_is_fedspans_and_says_what_it_is():
    assert len(CLASSES) >= 9
    for error in CLASSES.values():
        assert issubclass(error, FedspanError)
        assert error.__doc__


def test_the_tree_in_the_docstring_is_the_tree():
    drawn = re.findall(r"([│├└─ ]*)(\w+(?:Error|Conflict|Lost|Exhausted))\b(.*)", fedspan.errors.__doc__)
    assert {name for _, name, _ in drawn} >= set(CLASSES)
    above = {}
    for branch, name, text in drawn:
        depth = len(branch.rstrip(" ").replace("── ", "──"))
        above[depth] = name
        parents = [d for d in above if d < depth]
        if parents and name in CLASSES:
            assert above[max(parents)] in {c.__name__ for c in CLASSES[name].__mro__}, name
        if "(a ValueError)" in text:
            assert issubclass(CLASSES[name], ValueError)


@pytest.mark.parametrize("name", ["ConfigurationError", "DataError", "FileError"])
def test_errors_about_arguments_are_value_errors(name):
    assert issubclass(CLASSES[name], ValueError)


@pytest.mark.parametrize("name", ["RoundConflict", "StateLost"])
def test_errors_of_a_site_can_be_caught_as_such(name):
    assert issubclass(CLASSES[name], CLASSES["SiteError"])


def test_the_nearest_word_is_a_hint_and_else_all_are_listed():
    assert nearest("krylow", ["power", "krylov"]) == "did you mean 'krylov'?"
    assert nearest("qqq", ["power", "krylov"]) == "known: krylov, power"
    assert nearest("x", []) == "known: "
