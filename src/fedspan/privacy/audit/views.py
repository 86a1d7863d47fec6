"""A transcript of secure sums as attacks on plain replies can read it: the sums, the masked numbers, and a re-run.

Each view is a transcript again. What a coordinator has are `sum_of` and `masked_as_numbers`, and with colluding sites
`without` their part. `replayed` is the auditor's: the same questions, put to the same sites without masks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedspan.encoding import Array, Plain
from fedspan.privacy.transcript import Seen, Transcript
from fedspan.rounds import STEPS, Round, Site, answer

SUM = "sum"
"""Under which name a sum is read as a site's reply."""
_KEYS, _MASKED = "secure.keys", "secure.masked"


def members_of(transcript: Transcript) -> list[str]:
    """Return the sites that most of the solver's sums are over."""
    solving = [seen for seen in transcript.sums if not seen.setup] or list(transcript.sums)
    counts = Counter(tuple(seen.summed or ()) for seen in solving)
    return list(counts.most_common(1)[0][0])


def sum_of(transcript: Transcript, members: Sequence[str]) -> Transcript:
    """Return the sums over just these sites as the replies of one."""
    rounds = []
    for seen in transcript.rounds:
        if seen.summed is None:
            some = {SUM: seen.replies[min(seen.replies)]} if seen.replies else {}
            rounds.append(replace(seen, replies=some))
        elif seen.summed == list(members):
            rounds.append(replace(seen, replies={SUM: seen.total}, total=None, summed=None))
    return Transcript(tuple(rounds))


def times_of(transcript: Transcript) -> dict[int, dict[str, int]]:
    """Return how often replies count in each sum, for the sites where that is not once."""
    return {seen.round: dict(seen.message["times"]) for seen in transcript.exchanges if seen.step == _MASKED}


def without(transcript: Transcript, known: Transcript) -> Transcript:
    """Return the transcript as those see it who know some sites' own replies: each sum less what these put in."""
    counts, replies = times_of(transcript), {seen.round: seen.replies for seen in known.rounds}
    rounds = []
    for seen in transcript.rounds:
        if seen.summed is not None:
            own = {name: reply for name, reply in replies.get(seen.round, {}).items() if name in seen.summed}
            left = [name for name in seen.summed if name not in own]
            seen = replace(seen, total=_minus(seen.total, own, counts.get(seen.round, {})), summed=left)
        rounds.append(seen)
    return Transcript(tuple(rounds), transcript.exchanges)


def _minus(total: Any, replies: dict[str, Plain], times: dict[str, int]) -> Plain:
    for name, reply in replies.items():
        own: Any = reply
        if isinstance(total, dict):
            total = {part: value - times.get(name, 1) * own[part] for part, value in total.items()}
        else:
            total = total - times.get(name, 1) * own
    return total


def masked_as_numbers(transcript: Transcript, site: str, rng: np.random.Generator | None = None) -> Transcript:
    """Return a site's masked replies read as if they were not masked; with ``rng``, random numbers in their place."""
    return Transcript(tuple(_as_numbers(transcript, site, rng)))


def _as_numbers(transcript: Transcript, site: str, rng: np.random.Generator | None) -> Iterator[Seen]:
    kind = ""
    for seen in transcript.exchanges:
        if seen.step == _KEYS:
            kind = seen.message["kind"]
        reply: Any = seen.replies.get(site)
        if seen.step != _MASKED or kind != "value" or not isinstance(reply, dict) or "masked" not in reply:
            continue
        step = STEPS[seen.message["step"]]
        if not step.setup:
            parts = {name: _decoded(part, reply["exponents"][name], rng) for name, part in reply["masked"].items()}
            value = parts["value"] if set(parts) == {"value"} else parts
            yield Seen(seen.round, step.name, False, seen.message["message"], "sum", {site: value})


def _decoded(part: Array, exponent: int, rng: np.random.Generator | None) -> Array:
    if rng is not None:
        part = rng.integers(0, 2**64, size=part.shape, dtype=np.uint64)
    return np.asarray(np.ldexp(np.ascontiguousarray(part).view(np.int64).astype(np.float64), -exponent))


def replayed(transcript: Transcript, sites: Iterable[Site]) -> Transcript:
    """Return what a coordinator would have seen of these sites, had the same questions been answered without masks.

    The sites are opened afresh, as the study opens them but for the masks; each is asked the rounds it took part in.
    """
    opened = {site.id: site for site in sites}
    last: dict[str, int] = {}
    rounds = []
    for seen in transcript.rounds:
        replies = {}
        for name in sorted(seen.replies) if seen.summed is None else seen.summed:
            if name in opened:
                parents = {name: last[name]} if name in last else {}
                question = Round(STEPS[seen.step], seen.message, number=seen.round, parents=parents)
                replies[name] = answer(opened[name], question).value
                last[name] = seen.round
        rounds.append(replace(seen, replies=replies, total=None, summed=None))
    return Transcript(tuple(rounds))
