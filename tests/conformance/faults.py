"""What goes wrong in conformance tests: coordinators that die, sites that fall silent."""

from __future__ import annotations

from tests.wire import CoordinatorDown


def dies_in(number, engine):
    """An engine whose coordinator dies before round ``number`` is executed."""

    def make_engine(sites, seed):
        execute = engine(sites, seed)

        def run_round(question):
            if question.number == number:
                raise CoordinatorDown
            return execute(question)

        return run_round

    return make_engine


def silent_in_turn(fate, sites, begin=3, end=float("inf")):
    """One site after another fails to answer, once the data is set up (from round ``begin``, to before ``end``)."""
    names = sorted(sites)
    return lambda number, site: fate if begin <= number < end and site == names[number % len(names)] else None
