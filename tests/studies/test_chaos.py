"""Studies whose workers and databases keep failing end like the undisturbed study. `make chaos` prints figures.

REKINDLE_CHAOS_SEED=7 make chaos draws the same faults as the run that printed the seed 7.
"""

from __future__ import annotations

import functools
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from disturbing import FAULTS, Chaos, Disk, Figures
from reading_copies import expected, in_order, of_mlflow, of_table, of_tensorboard, of_wandb
from rekindle.studies.engine.runner import start_study
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from studying import bits, run, tiny

CONFIG = functools.partial(tiny, 24, (3, 27, 3), generation=8, env="hanging:Hanging-v0", fixed={"epoch_steps": 1024})
CREW, LEASE = 4, 1.5
LEAST = 100  # faults of each study
PATIENCE = 300.0  # seconds in which nobody gets on, at a pace of 1
TAKES = 22.0  # seconds for one worker whom nobody disturbs; where it takes longer, leases and patience are longer


@dataclass(frozen=True)
class Undisturbed:
    """The study with one worker, whom nobody disturbs; ``pace`` is how slow the machine is."""

    bits: dict[str, Any]
    pace: float


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    began = time.monotonic()
    result = run(f"sqlite:///{tmp_path_factory.mktemp('undisturbed') / 'a.db'}", CONFIG())
    return Undisturbed(result, max(1.0, (time.monotonic() - began) / TAKES))


@pytest.fixture
def disk() -> Iterator[Callable[[int], Disk]]:
    """Makes small file systems, outside of pytest's own directories, which only their owner may enter."""
    disks: list[Disk] = []

    def make(megabytes: int) -> Disk:
        disks.append(Disk(Path(tempfile.mkdtemp(prefix="rekindle-chaos-")), megabytes))
        return disks[-1]

    yield make
    for disk in disks:
        disk.close()


def study(
    url: str,
    directory: Path,
    disk: Disk,
    undisturbed: Undisturbed,
    faults: int = LEAST,
    lease: float = LEASE,
    **more: Any,
) -> Figures:
    """Disturbs a study, and holds what came of it against the undisturbed one."""
    directory.mkdir()
    with Store(url) as store:
        start_study(store, "s", CONFIG())
    seed = int(os.environ.get("REKINDLE_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    pace = undisturbed.pace
    chaos = Chaos(url, "s", directory, seed=seed, lease=lease * pace, disk=disk, **{"crew": CREW, **more})
    figures = chaos.run(faults, PATIENCE * pace)
    with Store(url) as store:
        wrong = [*differences(bits(store), undisturbed.bits)]
        assert not wrong, "\n".join([f"seed {seed}", *wrong[:20]])
        assert {trial.state for trial in store.trials("s")} == {"complete", "pruned"}
        assert store.workers() == []
        # Who is killed after its result, before it frees the trial, leaves a lease that nobody needs to take.
        assert [finding for finding in check(store) if finding.kind != "lease"] == []
        for trial in store.trials("s"):
            tokens = [event.data["token"] for event in store.events(trial.uid) if "token" in event.data]
            assert tokens == sorted(set(tokens)), "each taking of a lease has a token of its own"
    assert figures.faults.total() >= faults, str(figures)
    assert figures.kinds == len(FAULTS), str(figures)
    assert figures.takeovers or "beside" in more, str(figures)  # beside workers, all victims may be other processes
    return figures


def differences(result: Any, expected: Any, place: str = "") -> Iterator[str]:
    """What is not equal, and where."""
    both = (result, expected)
    if all(isinstance(value, dict) for value in both):
        for key in {**expected, **result}:
            yield from differences(result.get(key), expected.get(key), f"{place} {key}")
    elif all(isinstance(value, list | tuple) for value in both) and len(result) == len(expected):
        for key, pair in enumerate(zip(*both, strict=True)):
            yield from differences(*pair, f"{place} {key}")
    elif result != expected:
        yield f"{place}: {str(result)[:200]} is not {str(expected)[:200]}"


@pytest.mark.chaos
def test_a_study_on_sqlite_ends_as_undisturbed(
    disk: Callable[[int], Disk], tmp_path: Path, undisturbed: Undisturbed, record_property: Callable[..., None]
) -> None:
    mount = disk(64)
    url = f"sqlite:///{mount.directory / 'store.db'}"
    figures = study(url, tmp_path / "logs", mount, undisturbed)
    record_property("chaos", f"SQLite, {figures}")


@pytest.mark.chaos
def test_a_study_on_postgresql_ends_as_undisturbed(
    disk: Callable[[int], Disk],
    postgres_in: Callable[[Path], Any],
    tmp_path: Path,
    undisturbed: Undisturbed,
    record_property: Callable[..., None],
) -> None:
    mount = disk(512)
    server = postgres_in(mount.directory)
    figures = study(server.new_database(), tmp_path / "logs", mount, undisturbed, server=server)
    record_property("chaos", f"PostgreSQL, {figures}")


@pytest.mark.chaos
@pytest.mark.filterwarnings("ignore")  # these libraries warn of each other
def test_copies_hold_each_epoch_once_and_in_order_whoever_dies(
    disk: Callable[[int], Disk], tmp_path: Path, undisturbed: Undisturbed, record_property: Callable[..., None]
) -> None:
    mount, place = disk(64), tmp_path / "copies"
    place.mkdir()
    url = f"sqlite:///{mount.directory / 'store.db'}"
    sinks = {"tensorboard": "t", "csv": "c.csv", "parquet": "c.parquet", "wandb": "w", "mlflow": "m.db"}
    beside = [["export-curves", "s", "--follow", "--to", f"{sink}:{place / name}"] for sink, name in sinks.items()]
    figures = study(url, tmp_path / "logs", mount, undisturbed, faults=25, lease=4 * LEASE, crew=2, beside=beside)
    record_property("chaos", f"copies beside SQLite, {figures}")
    with Store(url) as store:
        whole = expected(store)
    assert of_tensorboard(place / "t") == whole
    assert in_order(of_table(place / "c.csv")) == in_order(of_table(place / "c.parquet")) == whole
    wandb = {name: [round(row["time/epoch"]) for row in rows] for name, rows in of_wandb(place / "w").items()}
    assert wandb == whole
    mlflow = {name: [round(epoch) for _, epoch in sorted(rows)] for name, rows in of_mlflow(place / "m.db").items()}
    assert mlflow == whole
