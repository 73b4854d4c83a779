"""Offline runs of Weights & Biases, for upload by `wandb sync`."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import wandb

from .names import EPOCH, plain, renamed
from .runs import Point, Run

PROJECT = "rekindle"  # unless WANDB_PROJECT names another


class WandB:
    """Runs below a folder, each in a directory of its own.

    A run is written whole once its trial has ended or the copy is complete, and replaces an earlier run of the same
    id. Each epoch is therefore in it once and in order, even if a process is killed. The step is the number of
    environment steps, or of epochs for a task without an environment.
    """

    def __init__(self, folder: Path, names: str):
        self.folder, self.names = folder, names
        self._points: dict[str, list[Point]] = {}
        self._runs: dict[str, Run] = {}

    def last(self, run: Run) -> int:
        """Return 0: each process writes a run from the beginning."""
        return 0

    def write(self, run: Run, points: Sequence[Point]) -> None:
        """Keep the points until the run is written."""
        self._points.setdefault(run.name, []).extend(points)
        self._runs[run.name] = run

    def end(self, run: Run) -> None:
        """Write the run if it has grown."""
        if run.name in self._runs:
            del self._runs[run.name]
            self._put(run, self._points[run.name])

    def flush(self) -> None:
        """Do nothing: a run is written at its end."""

    def close(self) -> None:
        """Write the runs that have not ended."""
        for run in list(self._runs.values()):
            self.end(run)

    def _put(self, run: Run, points: Sequence[Point]) -> None:
        name = hashlib.sha256(f"{run.group}/{run.name}/{run.uid}".encode()).hexdigest()[:16]
        for old in self.folder.glob(f"wandb/offline-run-*-{name}"):
            shutil.rmtree(old)
        quiet = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
        )
        with wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            group=run.group,
            name=run.name,
            id=name,
            job_type=run.title,
            tags=[run.state],
            config={**plain(run.hyperparameters), "seed": run.seed, "uid": run.uid},
            dir=self.folder,
            mode="offline",
            settings=quiet,
        ) as written:
            for point in points:
                step = int(point.metrics.get("env_steps", point.epoch))
                row = renamed(point.metrics, self.names) | {EPOCH: point.epoch, "_timestamp": point.time}
                written.log(row, step=step)
            written.summary["state"] = run.state
            written.finish(exit_code=int(run.state == "failed"))
