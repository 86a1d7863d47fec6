"""What reaches a coordinator under secure sums? The same PCA twice, and what each run's transcript holds of one site.

Five hospitals; a round is over when four have answered (Cohort(first=4)), so one drops out of each sum. The components
are the same as without masks, to the digits that fixed point keeps.
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np

from fedspan import FederatedPCA
from fedspan.privacy.transcript import Transcript
from fedspan.rounds import Cohort

rng = np.random.default_rng(0)
spread = 3.0 * 0.7 ** np.arange(20)
sites = {name: rng.standard_normal((200, 20)) * spread for name in ["berlin", "lima", "oslo", "riga", "turin"]}
settings = {"solver": "fedpower", "participation": Cohort(first=4), "record": "transcript"}

models, seen = {}, {}
for secure in (False, True):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a transcript holds each site's releases: it is what we are here for
        models[secure] = FederatedPCA(3, secure=secure, run_folder=folder, **settings).fit(sites)
        transcript = Transcript.read(Path(folder))
    step = "secure.masked" if secure else "gram.multiply_counted"
    rounds = transcript.exchanges if secure else transcript.rounds
    seen[secure] = [r.replies["berlin"] for r in rounds if r.step == step and "berlin" in r.replies][-1]

plain, masked = seen[False]["product"], seen[True]["masked"]["product"]
print("one product of Berlin's, as the coordinator got it")
print("without masks:", plain.ravel()[:3])
print("under masks:  ", masked.ravel()[:3])
last = models[True].history_[-1]
print(f"\nthe last sum: {last.sites} of {last.masked.asked} sites, dropped {', '.join(last.masked.dropped) or 'none'};")
print(f"each shared masks with {last.masked.neighbours} others; rounding at most {last.masked.rounding:.1g}")
print(f"traffic: {models[False].bytes_up_:,} bytes from the sites, {models[True].bytes_up_:,} under masks")
distance = abs(models[True].components_ - models[False].components_).max()
print(f"largest difference of the components: {distance:.1g}")
assert distance < 1e-9
