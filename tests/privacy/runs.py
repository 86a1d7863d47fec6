"""Transcripts for the audit's tests: written down by the papers' formulas, or recorded from real runs."""

from __future__ import annotations

import numpy as np

from fedspan.data import open_source
from fedspan.data.prepared import Prepared
from fedspan.linalg import orth
from fedspan.privacy.transcript import Seen, Transcript
from fedspan.run import Study, run


def basis(d, r, seed=1):
    """A random orthonormal block."""
    return orth(np.random.default_rng(seed).standard_normal((d, r)))


def grams(d=12, sites=("a", "b", "c"), rows=40, decay=0.9, seed=0):
    """Gram matrices of sites that share their leading directions."""
    rng = np.random.default_rng(seed)
    turn = orth(rng.standard_normal((d, d)))
    parts = {name: rng.standard_normal((rows, d)) * decay ** np.arange(d) @ turn for name in sites}
    return {name: x.T @ x for name, x in parts.items()}


def products(truth, blocks):
    """What `gram.multiply` releases for blocks Z."""
    return Transcript(
        tuple(
            Seen(i, "gram.multiply", False, z, "sum", {name: g @ z for name, g in truth.items()})
            for i, z in enumerate(blocks)
        )
    )


def power_blocks(truth, z, rounds):
    """The Z of a power iteration."""
    total = sum(truth.values())
    for _ in range(rounds):
        yield z
        z = orth(total @ z)


def faps(truth, z, rounds, share=0.15, inner=5, last=True):
    """A run of FAPS written down from (11), (12), (15), (16), (18) and (19), with its last Ritz round."""
    betas = {name: share * np.linalg.eigvalsh(g)[-1] for name, g in truth.items()}
    own = dict.fromkeys(truth, z)
    seen = []
    for number in range(rounds):
        replies = {}
        for name, g in truth.items():
            x = own[name]
            h = g + multiplier(g, x) + betas[name] * z @ z.T
            for _ in range(inner if number else 0):  # in the first round X_i = Z is stationary
                x = orth(h @ x)
            own[name] = x
            y = (betas[name] * x @ x.T - multiplier(g, x)) @ z
            replies[name] = {"product": y, "objective": np.array(np.trace(z.T @ g @ z))}
        message = {"z": z, "k": number, "unit": 1.0, "penalty": share}
        seen.append(Seen(number, "faps.consensus", False, message, "sum", replies))
        z = orth(sum(reply["product"] for reply in replies.values()))
    if last:
        seen.append(Seen(rounds, "gram.multiply", False, z, "sum", {name: g @ z for name, g in truth.items()}))
    return Transcript(tuple(seen)), betas


def multiplier(g, x):
    """Lambda_i = X W' + W X', W = -(I - XX')G X: (15) and (16)."""
    w = x @ (x.T @ g @ x) - g @ x
    return x @ w.T + w @ x.T


def recorded(folder, sites, **study):
    """Run a study on arrays (or sources) with its transcript kept."""
    sources = {name: x if hasattr(x, "gram_times") else open_source(x) for name, x in sites.items()}
    result = run(Study(**study), sources, folder=folder, record="transcript")
    return Transcript.read(folder), result


def true_grams(transcript, sites):
    """Each site's Gram matrix as the run prepared its rows."""
    prepared = next(seen.message for seen in transcript.rounds if seen.step == "data.prepare")
    sources = {name: x if hasattr(x, "gram_times") else open_source(x) for name, x in sites.items()}
    return {name: Prepared(source, prepared).gram() for name, source in sources.items()}


def brute_rank(d, functionals):
    """The rank of functionals <F, G> on symmetric matrices, all written out."""
    rows = []
    for f in functionals:
        f = (f + f.T) / 2
        rows.append(np.concatenate([np.diagonal(f), np.sqrt(2) * f[np.triu_indices(d, 1)]]))
    return int(np.linalg.matrix_rank(np.array(rows), tol=1e-8))
