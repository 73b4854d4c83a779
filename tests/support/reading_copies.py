"""Readers of copies of the study "s", using the tools' own readers if they have any."""

from __future__ import annotations

import csv
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rekindle.studies.curves.tensorboard import EPOCH
from rekindle.studies.storage.store import Store

BLOCK = 32768  # bytes of a block in LevelDB's logs, which W&B writes


def expected(store: Store) -> dict[str, list[int]]:
    """Return the epochs of each trial that the study trained."""
    ends = {row.number: row.epochs for row in store.segments("s") if row.state == "done"}
    return {f"trial-{number:04}": list(range(1, last + 1)) for number, last in ends.items()}


def of_tensorboard(folder: Path) -> dict[str, list[int]]:
    """Return the epochs of each run, from TensorBoard's reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs = {}
    for path in sorted((folder / "s").iterdir()):
        events = EventAccumulator(str(path), {"scalars": 0})
        events.Reload()
        runs[path.name] = [round(event.value) for event in events.Scalars(EPOCH)]
    return runs


def of_table(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8") as file:
            return [*csv.DictReader(file)]
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def in_order(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the epochs of each trial in a table, in order of its rows."""
    result: dict[str, list[int]] = {}
    for row in rows:
        result.setdefault(f"trial-{int(row['trial']):04}", []).append(int(row["epoch"]))
    return result


def records(path: Path) -> Iterator[Any]:
    """Yield the records of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = path.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, record_type = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if record_type in (1, 4):  # a whole record, or its last part
            yield Record.FromString(parts)
            parts = b""


def ended(path: Path) -> list[Any]:
    """Return the records of an offline run, waiting for W&B's process to write the last one."""
    deadline = time.monotonic() + 60
    while True:
        result = [*records(path)]
        if any(record.HasField("exit") for record in result):
            return result
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def of_wandb(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each run, by name."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        name = ""
        for record in ended(path):
            if record.HasField("run"):
                name = name or record.run.display_name
                assert runs.setdefault(name, []) == []
                values = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                assert "lr" in values or "lr" in str(record.run.config)
            if record.HasField("history"):
                items = record.history.item
                runs[name].append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return runs


def of_mlflow(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and epochs of each run, by name."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{path}")
    experiment = client.get_experiment_by_name("s")
    if experiment is None:
        return {}
    return {
        run.info.run_name: [
            (point.step, point.value) for point in client.get_metric_history(run.info.run_id, "time/epoch")
        ]
        for run in client.search_runs([experiment.experiment_id])
    }
