"""Runs of MLflow, in a SQLite file or on a tracking server."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from ssl import SSLError
from urllib.error import HTTPError

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from .names import EPOCH, plain, renamed
from .runs import Point, Run

MOST_METRICS = 1000  # in one request; each request is stored whole or not at all
NAME = "rekindle.run"  # tag that identifies a run
PATIENCE = 10.0  # seconds for a server's first answer; MLflow itself would try for minutes
STATES = {"failed": "FAILED"}  # any other state is FINISHED


class MLflow:
    """MLflow's runs, in one experiment for each study.

    Each epoch's metrics are stored together with the metric `time/epoch`, which says how far a run is. The step is the
    number of environment steps, or of epochs for a task without an environment.
    """

    def __init__(self, location: Path | str, names: str):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self.names = names
        if isinstance(location, str) and location.startswith("http"):
            _check_answers(location)
        self.client = MlflowClient(location if isinstance(location, str) else f"sqlite:///{location}")
        self._ids: dict[str, str] = {}
        self._ended: set[str] = set()

    def last(self, run: Run) -> int:
        """Return the last epoch of the run."""
        runs = self.client.search_runs([self._experiment(run)], f"tags.`{NAME}` = '{run.name}'", max_results=1)
        if not runs:
            return 0
        self._ids[run.name] = runs[0].info.run_id
        epoch = round(runs[0].data.metrics.get(EPOCH, 0))
        if not epoch:  # before the first epoch, the hyperparameters may be incomplete
            self._describe(run)
        return epoch

    def write(self, run: Run, points: Sequence[Point]) -> None:
        """Add the metrics of each point, and the hyperparameters once."""
        identity = self._id(run)
        metrics: list[Metric] = []
        for point in points:
            step = int(point.metrics.get("env_steps", point.epoch))
            row = renamed(point.metrics, self.names) | {EPOCH: float(point.epoch)}
            if len(metrics) + len(row) > MOST_METRICS:
                self.client.log_batch(identity, metrics)
                metrics = []
            metrics += [Metric(name, value, int(1000 * point.time), step) for name, value in row.items()]
        self.client.log_batch(identity, metrics)

    def end(self, run: Run) -> None:
        """Record the run's final state once."""
        if run.name not in self._ended and run.name in self._ids:
            self._ended.add(run.name)
            end = None if run.finished is None else int(1000 * run.finished)
            self.client.set_terminated(self._ids[run.name], STATES.get(run.state, "FINISHED"), end)

    def flush(self) -> None:
        """Do nothing: each write is visible at once."""

    def close(self) -> None:
        """Do nothing: the client holds no file."""

    def _experiment(self, run: Run) -> str:
        experiment = self.client.get_experiment_by_name(run.group)
        return experiment.experiment_id if experiment is not None else self.client.create_experiment(run.group)

    def _id(self, run: Run) -> str:
        """Return the id of a run, creating it if necessary."""
        if run.name not in self._ids:
            tags = {NAME: run.name, "rekindle.uid": run.uid, "rekindle.task": run.title}
            remote_run = self.client.create_run(self._experiment(run), int(1000 * run.started), tags, run.name)
            self._ids[run.name] = remote_run.info.run_id
            self._describe(run)
        return self._ids[run.name]

    def _describe(self, run: Run) -> None:
        """Store a run's hyperparameters."""
        values = {**plain(run.hyperparameters), "seed": run.seed}
        params = [Param(name, str(value)) for name, value in values.items()]
        self.client.log_batch(self._ids[run.name], params=params)


def _check_answers(address: str) -> None:
    """Raise ValueError unless a server answers, whatever it says."""
    try:
        urllib.request.urlopen(address, timeout=PATIENCE).close()
    except (HTTPError, HTTPException):
        return
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, SSLError):  # MLflow may be told to trust it
            return
        why = getattr(reason, "strerror", None) or reason
        raise ValueError(
            f"MLflow's server must answer, but {address} does not: {why}; start it (`mlflow server`), correct the "
            "address, or write to mlflow:FILE.db"
        ) from None
