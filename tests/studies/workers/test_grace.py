"""Workers that are preempted save, or at least exit, before they are killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hanging
import pytest
from rekindle.studies.engine.runner import start_study
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers import training
from rekindle.studies.workers.supervisor import WorkerProcess
from rekindle.studies.workers.worker import Worker
from studying import bits, sqlite_first, tiny, undisturbed

RECIPE = Path(__file__).parents[3] / "examples" / "slurm.sh"


def test_an_evaluation_is_stopped_and_repeated(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = undisturbed(tiny(2, (1, 2, 2)))
    asked: list[bool] = []
    evaluate = training.evaluate

    def interrupted(*arguments: Any, **more: Any) -> Any:
        asked.append(True)
        return evaluate(*arguments, **more)

    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(2, (1, 2, 2)))
        with monkeypatch.context() as patched:
            patched.setattr(training, "evaluate", interrupted)
            assert not Worker(store, "s").run(lambda: bool(asked))
        assert {task.epochs for task in store.tasks()} == {1}
        assert not store.held()
        assert not [row for row in store.segments("s") if row.state == "done"]
        assert Worker(store, "s").run()
        assert bits(store) == expected


@sqlite_first
def test_a_worker_whose_step_takes_too_long_exits_before_it_is_killed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    monkeypatch.setenv(hanging.VARIABLE, str(tmp_path / "hangs"))
    config = tiny(3, (1, 2, 2), env="hanging:Hanging-v0")
    expected = undisturbed(config)
    with Store(url) as store:
        start_study(store, "s", config)
        hanging.hang(tmp_path / "hangs", "asleep")
        worker = WorkerProcess(url, "s", 1, ["--grace", "3"])
        wait_until(lambda: [*(tmp_path / "hangs").glob("taken-*")])
        asked = time.monotonic()
        worker.stop()
        worker.process.wait(60)
        assert worker.status == 128 + signal.SIGTERM
        assert 2.0 < time.monotonic() - asked < 10.0  # on a busy machine; 2.4 seconds on another
        worker.wait(1)
        assert "a step takes longer than --grace 3: exits with what was saved last" in "\n".join(worker.last_words)
        assert not store.held()
        assert Worker(store, "s").run()
        assert bits(store) == expected
        kinds = {event.kind for event in store.events_of_study("s")}
        assert not kinds & {"takeover", "failed"}  # nobody was killed
        assert check(store) == []
