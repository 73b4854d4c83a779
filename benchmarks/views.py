"""What it costs to look at large studies: reports, `rekindle watch` and `rekindle serve`.

    python benchmarks/views.py [--report 1000 5 27] [--watch 10000]

Rows of made-up studies are written to a SQLite file, as workers would have written them. Columns: seconds of processor
time, and the size of the report. Bars: a report on 1,000 trials with 5 seeds and 27 epochs each within 5 s and 3 MB; of
10,000 trials the first picture within 1 s from the command's start, and a look without any change within 50 ms.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rekindle.spaces import flatten
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.storage.sql import schema
from rekindle.studies.storage.store import Store
from rekindle.tasks import load

SPACE = {
    "optimizer.lr": "loguniform(1e-5, 1e-2)",
    "gamma": "near_one(0.9, 0.9999)",
    "gae_lambda": "uniform(0.8, 1)",
    "clip_coef": "uniform(0.1, 0.4)",
    "ent_coef": "loguniform(1e-8, 0.1)",
    "num_minibatches": "ordinal(2, 4, 8)",
    "model.activation": "choices('tanh', 'relu')",
}
MINUTE = 60.0


def fill(url: str, trials: int, seeds: int, epochs: int, running: int = 0, name: str = "large") -> None:
    """Write a study's rows, whose last trials still run, held by this process."""
    dice, rows = random.Random(0), Rows(name)
    options: dict[str, Any] = {"priors": SPACE, "scheduler": "halving", "trials": trials}
    config = study_config(load("ppo"), "CartPole-v1", search=[*SPACE], epochs=(1, epochs, 3), seeds=seeds, **options)
    for number in range(trials):
        params = flatten(config.searched.sample(seed=number))
        for replicate in range(seeds):
            rows.add(number * seeds + replicate, params, config.rungs, number >= trials - running, replicate, dice)
    with Store(url) as store:
        store.change_study(name, lambda _: config.to_json())
        store.database.write(rows.write)


class Rows:
    """Rows of a study, gathered to be written at once."""

    def __init__(self, study: str):
        self.study, self.begin = study, time.time() - 60 * MINUTE
        self.rows: dict[Any, list[dict[str, Any]]] = {
            table: [] for table in (schema.task, schema.trial, schema.segment, schema.metric, schema.event)
        }

    def add(
        self, number: int, params: Any, rungs: Sequence[int], runs: bool, replicate: int, dice: random.Random
    ) -> None:
        """Add a trial, trained to the end unless it runs."""
        uid, start = f"{number:032x}", self.begin + number * 0.01
        level, speed = 500 * dice.random() ** 2, dice.uniform(0.05, 0.4)
        returns = [level * (1 - math.exp(-speed * epoch)) + dice.gauss(0, 15) for epoch in range(1, rungs[-1] + 1)]
        reached = rungs[-1] if not runs else rungs[-1] // 2
        held = {"lease_owner": str(Owner.current()) if runs else None, "lease_expires": time.time() + 60 * MINUTE}
        self.rows[schema.task].append({"uid": uid, "lease_epoch": 1, "epochs": reached, "created": start} | held)
        state = {"state": "running" if runs else "complete", "finished": None if runs else start + 5 * MINUTE}
        columns = {"study": self.study, "number": number, "uid": uid, "revision": 1, "created": start}
        attrs = {"bracket": 0, "seed": replicate}
        self.rows[schema.trial].append(columns | {"params": params, "attrs": attrs, "error": None} | state)
        for rung, epochs in enumerate(rungs):
            done = reached >= epochs
            score = {"state": "done" if done else "ready", "score": returns[epochs - 1] if done else None}
            row = {"study": self.study, "number": number, "rung": rung, "epochs": epochs, "digest": uid * 2}
            self.rows[schema.segment].append(row | score | {"revision": 1, "objectives": None})
            if not done:
                break
        owner = {"owner": str(Owner.current()), "token": 1, "epochs": 0, "study": self.study}
        self.rows[schema.event] += [
            {"uid": uid, "created": start, "kind": "init", "data": {"rekindle": "0.1.0", "torch": "2.13.0"}},
            {"uid": uid, "created": start, "kind": "start", "data": owner},
        ]
        for epoch, value in enumerate(returns[:reached], 1):
            metrics = {"env_steps": 4096 * epoch, "episode_return": value, "episode_length": value, "loss": -value / 7}
            metrics |= {"approx_kl": 0.01, "clip_fraction": 0.1, "entropy": 0.5, "explained_variance": 0.9}
            metrics |= {"return": value} if epoch in rungs else {}
            self.rows[schema.metric].append({"uid": uid, "epoch": epoch, "data": metrics})

    def write(self, connection: Any) -> None:
        """Insert all rows."""
        for table, rows in self.rows.items():
            connection.execute(table.insert(), rows)
        connection.execute(schema.study.update().values(revision=1))


def child(code: str, url: str) -> str:
    """Return what a new process prints, which the code measures."""
    return subprocess.run([sys.executable, "-c", code, url], check=True, capture_output=True, text=True).stdout.strip()


REPORT = """
import sys, time
from rekindle.studies.report.data import report_view
from rekindle.studies.report.page import page
from rekindle.studies.storage.store import Store
with Store(sys.argv[1]) as store:
    begin = time.process_time()
    size = len(page([report_view(store, "large")]).encode())
print(f"{time.process_time() - begin:.2f} s, with imports {time.process_time():.2f} s, {size / 1e6:.2f} MB")
"""


WATCH = """
import io, sys, time
from rich.console import Console
from rekindle.studies.cli.output.live_progress import Progress
from rekindle.studies.cli.output.watching import picture
from rekindle.studies.live.views import LiveStudy
from rekindle.studies.storage.store import Store

out = Console(file=io.StringIO(), force_terminal=True, width=80, height=50)
times = []
with Store(sys.argv[1]) as store:
    study = LiveStudy(store, "large")
    progress = Progress(out, "large", store.url)
    for _ in range(11):
        out.print(picture(progress, study.look()))
        times.append(time.process_time())
looks = sorted(1000 * (after - before) for before, after in zip(times, times[1:]))
print(f"first picture {times[0]:.2f} s after the start, a look without a change {looks[5]:.0f} ms")
"""


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers: dict[str, Any] = {"type": int, "nargs": 3, "metavar": ("TRIALS", "SEEDS", "EPOCHS")}
    parser.add_argument("--report", default=[1000, 5, 27], **numbers)
    parser.add_argument("--watch", type=int, default=10_000, metavar="TRIALS")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'report.db'}"
        fill(url, *arguments.report)
        print("report:", child(REPORT, url))
        url = f"sqlite:///{Path(directory) / 'watch.db'}"
        fill(url, arguments.watch, 1, 9, running=32)
        print("watch:", child(WATCH, url))


if __name__ == "__main__":
    main()
