"""A classifier of scikit-learn by partial_fit, which reports in a file of JSON lines (lines = "log.jsonl").

rekindle tune command --space lines.toml --trials 16 --epochs 1:27 -- \
    python sklearn_file.py {lr} {epochs} {seed} {checkpoint}
"""

import json
import pickle
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

lr, epochs, seed, folder = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
images, labels = load_digits(return_X_y=True)
file = folder / "model.pickle"
if file.exists():  # your own checkpoint may be a pickle; nobody else loads it
    first, model = pickle.loads(file.read_bytes())
else:
    first, model = 0, SGDClassifier(learning_rate="constant", eta0=lr, random_state=seed)
for epoch in range(first + 1, epochs + 1):
    order = np.random.default_rng([seed, epoch]).permutation(1437)
    model.partial_fit(images[order], labels[order], classes=range(10))
    file.write_bytes(pickle.dumps((epoch, model)))
    with (folder / "log.jsonl").open("a") as log:
        accuracy = model.score(images[1437:], labels[1437:])
        log.write(json.dumps({"epoch": epoch, "accuracy": accuracy}) + "\n")
