"""How do I keep the principal components of a file that is still being written?"""

import tempfile
from pathlib import Path

import numpy as np

from fedspan import StreamingPCA
from fedspan.data import follow

rng = np.random.default_rng(0)
spread = np.diag([5.0, 3.0, 1.0, 1.0, 1.0])


def write(file, rows):
    """What some other program does, now and then."""
    with file.open("a") as lines:
        lines.writelines(",".join(map(str, row)) + "\n" for row in rows.tolist())


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "sensor.csv")
    file.write_text("a,b,c,d,e\n")
    tail, pca = follow(file), StreamingPCA(n_components=2, block_size=100)
    for _ in range(4):
        write(file, rng.standard_normal((250, 5)) @ spread)
        for block in tail.read():  # what is new, and never waits
            pca.partial_fit(block)
        print(f"{pca.n_samples_seen_} rows, {pca.explained_variance_ratio_.sum():.1%} of the variance")

    position = tail.position  # plain data: keep it with the model, and another process goes on
    write(file, rng.standard_normal((250, 5)) @ spread)
    for block in follow(file, position=position).read():
        pca.partial_fit(block)
    print(f"{pca.n_samples_seen_} rows")
