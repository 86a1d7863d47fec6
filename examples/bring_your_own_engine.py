"""What is an engine? One callable that executes a round: here, one that counts what every site sends."""

from collections import Counter

import numpy as np

from fedspan import FederatedPCA
from fedspan.encoding import payload_bytes
from fedspan.rounds import Outcome, answer

sent = Counter()


def counting_engine(sites, seed):
    """Visit every site, in name order, and note the bytes of each reply."""

    def execute(question):
        collector, up = question.reduce.collector(order_free=True), 0
        for site in sorted(sites, key=lambda s: s.id):
            reply = answer(site, question)
            collector.add(site.id, reply.value, reply.weight, 1)
            sent[site.id] += payload_bytes(reply.value)
            up += payload_bytes(reply.value)
        return Outcome(collector.result(), [s.id for s in sites], up, payload_bytes(question.message) * len(sites))

    return execute


rng = np.random.default_rng(0)
sites = {name: rng.standard_normal((50, 20)) for name in ("a", "b", "c")}
pca = FederatedPCA(3, engine=counting_engine).fit(sites)
print(dict(sent), "bytes; together", pca.bytes_up_)
assert sum(sent.values()) == pca.bytes_up_
