"""Workers in this process: training, giving up, and independence from the number of workers."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import optuna
import pytest
import sqlalchemy as sa
from rekindle.spaces import unflatten
from rekindle.studies.cli.commands.train import fit_task
from rekindle.studies.engine.checked_config import make_config
from rekindle.studies.engine.ranking import rank
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.snapshots import look
from rekindle.studies.engine.study_views import study_view
from rekindle.studies.errors import DamagedCheckpoint
from rekindle.studies.objective import Objective
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.sql.schema import blob
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.workers.training import Training
from rekindle.studies.workers.worker import Turn, Worker, take_turns
from rekindle.tasks import load
from rekindle.tasks.algorithms.ppo import PPO, PPOLearner
from rekindle.tasks.errors import Stopped
from rekindle.tasks.runtime.observers import EpochEvent
from rich.console import Console
from studying import TINY, bits, run, run_by_three, tiny, undisturbed

SMALL = tiny(3, (1, 2, 2))


def test_a_study_runs_to_its_end_and_no_epoch_is_trained_twice(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    count_epochs(monkeypatch, lambda learner: trained.append(learner.members))
    result = run(sqlite_url, tiny())
    assert sum(trained) == sum(trial_epochs(result).values())
    assert [trial[0] for trial in result["trials"]] == list(range(6))
    assert {trial[4] for trial in result["trials"]} == {"complete", "pruned"}
    with Store(sqlite_url) as store:
        view, snapshot = study_view(store, "s"), look(store, "s")
    study = view.to_json()
    assert study["state"] == "complete"
    assert all(trial["digest"] for trial in study["trials"])
    assert view.best == rank(view.trials)[0]
    assert study["best"]["epochs"] == 4
    assert snapshot.complete
    assert snapshot.epochs == snapshot.epochs_total == sum(trial_epochs(result).values())
    assert snapshot.env_steps == TINY["epoch_steps"] * snapshot.epochs
    assert [through for _, through, total in snapshot.rungs] == [total for _, _, total in snapshot.rungs]


def test_any_number_of_workers_gives_the_same_study(sqlite_url: str) -> None:
    config = tiny(4, (1, 2, 2))
    assert run_by_three(sqlite_url, config) == undisturbed(config)


def test_cohorts_change_no_bit(sqlite_url: str) -> None:
    assert run(sqlite_url, SMALL, workers=100) == undisturbed(SMALL)


def test_a_worker_stops_when_asked_and_another_one_resumes(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", SMALL)
        assert not Worker(store, "s").run(lambda: bool(store.segments("s")))
        assert any(row.state == "ready" for row in store.segments("s"))
    assert run(sqlite_url, SMALL) == undisturbed(SMALL)


def test_a_worker_says_once_what_has_changed_since_its_trials_were_trained(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with Store(sqlite_url) as store:
        start_study(store, "s", SMALL)
        assert not Worker(store, "s", say=said.append).run(lambda: bool(store.segments("s")))
        assert said == []
        monkeypatch.setattr("gymnasium.__version__", "99")
        assert Worker(store, "s", say=said.append).run()
    [line] = said
    assert re.fullmatch(r"trial \d \(\w{8}\) resumed, not bit-exact from there on: gymnasium \S+ -> 99", line)


def test_a_worker_that_waits_for_others_looks_for_work_soon_and_stops_within_its_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("rekindle.studies.workers.worker.time.sleep", lambda seconds: slept.append(seconds))
    monkeypatch.setattr("rekindle.studies.workers.worker.time.monotonic", lambda: sum(slept))
    turns: list[float] = []  # when each began

    def turn() -> Turn:
        turns.append(sum(slept))
        return Turn.BUSY

    assert take_turns(turn, lambda: sum(slept) > 10) is Turn.BUSY
    pauses = [round(later - earlier, 6) for earlier, later in pairwise(turns)]
    assert pauses == sorted(pauses)
    assert all(pause <= 0.051 + waited / 4 for pause, waited in zip(pauses, turns, strict=False))
    assert 10 < sum(slept) < 10.06


def test_a_diverged_trial_fails_with_its_reason_and_the_study_continues(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = undisturbed(SMALL)
    victim = whole["trials"][1]
    spoil(monkeypatch, victim[2], "entropy became nan")
    for workers in (1, 100):  # in company and alone
        url = sqlite_url if workers == 1 else sqlite_url + "2"
        result = run(url, SMALL, workers=workers)
        number, _, _, _, state, error = result["trials"][1]
        assert (number, state) == (1, "failed")
        assert error.startswith("Diverged: ppo on CartPole-v1")
        assert "entropy became nan in epoch 1" in error
        assert [trial[4] == "failed" for trial in result["trials"]] == [n == 1 for n in range(3)]
        assert result["trials"][0][:4] == whole["trials"][0][:4]
        assert result["segments"][0] == whole["segments"][0]


def test_an_error_of_one_member_fails_that_trial_alone_with_its_traceback(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lr = undisturbed(SMALL)["trials"][1][2]["optimizer.lr"]
    iterate = PPOLearner.iterate

    def breaks(learner: PPOLearner) -> Any:
        if any(abs(float(x) - lr) < 1e-9 for x in learner.hp.optimizer.lr.flatten()):
            raise RuntimeError("the simulator fell over")
        return iterate(learner)

    monkeypatch.setattr(PPOLearner, "iterate", breaks)
    result = run(sqlite_url, SMALL)
    assert [trial[0] for trial in result["trials"] if trial[4] == "failed"] == [1]
    assert "Traceback" in result["trials"][1][5]
    assert result["trials"][1][5].strip().endswith("RuntimeError: the simulator fell over")


def test_an_error_of_the_store_fails_no_trial(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(store: Store, writes: Any) -> None:
        raise RuntimeError("a mistake in the store")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", breaks)
        with pytest.raises(RuntimeError, match="a mistake in the store"):
            run(sqlite_url, SMALL)
    assert all(trial[4] != "failed" for trial in run(sqlite_url, SMALL)["trials"])


@pytest.mark.parametrize("by", ["command", "signal"])
def test_a_stop_just_at_a_rung_that_a_trial_passes_loses_no_part_of_its_curve(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr("rekindle.studies.workers.training.LOOK_EVERY", 0.0)
    config, stopped = tiny(8, (1, 4, 2), scheduler="hyperband", sampler="random"), list[int]()
    obey = Training.obey

    def stop_at_first(training: Training, event: EpochEvent) -> None:
        if event.epoch < training.epochs and not stopped:
            stopped.append(event.epoch)
            if by == "signal":
                raise Stopped("as an evaluation does at SIGTERM")
            Steering(training.store, "s").pause()
        obey(training, event)

    monkeypatch.setattr(Training, "obey", stop_at_first)
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        assert not Worker(store, "s").run(lambda: bool(stopped))
        assert len(stopped) == 1
        if by == "command":
            Steering(store, "s").resume()
        assert Worker(store, "s").run()
        assert bits(store) == undisturbed(config)


def test_a_repeated_configuration_is_trained_once(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = one_configuration(trials=4, epochs=(1, 2, 2))
    epochs: list[int] = []
    count_epochs(monkeypatch, lambda learner: epochs.append(learner.epochs))
    result = run(sqlite_url, config)
    assert len({trial[1] for trial in result["trials"]}) == 1
    assert len({(row.score, row.digest) for row in result["segments"] if row.rung == 0}) == 1
    assert len({(row.score, row.digest) for row in result["segments"] if row.rung == 1}) == 1
    assert sorted(epochs) == [1, 2]


@pytest.mark.slow
def test_earlier_longer_trainings_change_no_result(sqlite_url: str) -> None:
    config = one_configuration(trials=1, epochs=(1, 2, 2))
    fresh = undisturbed(config)
    with Store(sqlite_url) as store:
        task = PPO("CartPole-v1", storage=store).init(**config.fixed)
        task.fit(3)
        task.finish()
    result = run(sqlite_url, config)
    assert result["segments"] == fresh["segments"]
    assert result["trials"] == fresh["trials"]


@pytest.mark.parametrize("algorithm", ["ppo", "svpg"])
def test_a_part_of_the_next_epoch_changes_no_result(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    """Another study trains the same task for longer, and a signal ends that amid an epoch."""
    values: dict[str, Any] = (
        {**TINY_NESTED, "num_steps": 8} if algorithm == "ppo" else {"epoch_steps": 64, "num_envs": 2}
    )
    task_class = load(algorithm)
    alone = task_class("CartPole-v1").init(**values)
    alone.fit(1)
    expected = alone.evaluate(), alone.digest
    acting = getattr(task_class.learner, "base", task_class.learner)
    iterate, iterated = acting.iterate, list[int]()

    def interrupted(self: Any) -> Any:
        iterated.append(self.epochs)
        if iterated.count(1) == 2:
            signal.raise_signal(signal.SIGTERM)
        return iterate(self)

    with Store(sqlite_url) as store:
        with monkeypatch.context() as patch:
            patch.setattr(acting, "iterate", interrupted)
            task = task_class("CartPole-v1", storage=store).init(**values)
            with pytest.raises(Stopped):
                task.fit(3)
        assert [task.is_beyond(epochs) for epochs in (0, 1, 2)] == [True, True, False]
        task.finish()
        assert [task.is_beyond(epochs) for epochs in (0, 1, 2)] == [True, True, False]
        assert [(row.epochs, row.within_epoch) for row in store.checkpoints(task.uid)][-1] == (1, True)
        fixed = dict(task.identity.values)
        study = optuna.create_study(direction="maximize")
        study.optimize(Objective(algorithm, "CartPole-v1", epochs=1, storage=store, **unflatten(fixed)), n_trials=1)
        assert (study.trials[0].value, study.trials[0].user_attrs["rk_digest"]) == expected
        start_study(store, "s", make_config(task_class, "CartPole-v1", trials=1, epochs=(1,), fixed=fixed))
        assert Worker(store, "s").run()
        [segment] = store.segments("s")
        assert (segment.score, segment.digest) == expected
        with pytest.raises(ValueError, match="has 1 epochs and a part of the next and 1 were requested"):
            fit_task(store.task(task.uid), 1, Console(file=io.StringIO()))


@pytest.mark.parametrize(("damaged", "event_kind"), [(2, "discarded"), (1, "damaged")])  # all of two, and the newest
@pytest.mark.slow
def test_a_damaged_checkpoint_stops_its_trial_only_and_an_earlier_one_is_used_when_allowed(
    sqlite_url: str, damaged: int, event_kind: str
) -> None:
    config = tiny()
    with Store(sqlite_url) as store:
        start_study(store, "s", config)

        def waiting() -> list[int]:
            return [row.number for row in store.segments("s") if row.state == "ready" and row.rung == 2]

        assert not Worker(store, "s").run(lambda: bool(waiting()))
        uid = store.trials("s")[waiting()[0]].uid
        assert uid is not None
        assert len(store.checkpoints(uid)) == 2
        damage(store, uid, damaged)
        with pytest.raises(DamagedCheckpoint):
            Worker(store, "s").run()
        assert [store.trials("s")[row.number].uid for row in store.segments("s") if row.state == "ready"] == [uid]
        assert Worker(store, "s", use_previous=True).run()
        assert any(event.kind == event_kind for event in store.events(uid))
        assert bits(store) == undisturbed(config)


def one_configuration(**options: Any) -> Config:
    """A study that searches nothing."""
    from rekindle.spaces import flatten

    return tiny(fixed=flatten(PPO("CartPole-v1").init(**TINY_NESTED).hyperparameters or {}), **options)


TINY_NESTED = {name: value for name, value in TINY.items() if "." not in name} | {
    "model": {"width": 16, "layers": 1, "activation": "tanh"}
}


def trial_epochs(content: dict[str, Any]) -> dict[int, int]:
    return {row.number: row.epochs for row in content["segments"]}  # the last one counts


def count_epochs(monkeypatch: pytest.MonkeyPatch, note: Callable[[PPOLearner], None]) -> None:
    run_epoch = PPOLearner.run_epoch

    def counted(learner: PPOLearner, *args: Any, **kwargs: Any) -> Any:
        metrics = run_epoch(learner, *args, **kwargs)
        note(learner)
        return metrics

    monkeypatch.setattr(PPOLearner, "run_epoch", counted)


def spoil(monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], reason: str) -> None:
    def broken(learner: PPOLearner, metrics: Any) -> list[str | None]:
        theirs = ((learner.hp.optimizer.lr - params["optimizer.lr"]).abs() < 1e-9).flatten().tolist()
        return [reason if it else None for it in theirs]

    monkeypatch.setattr(PPOLearner, "find_nonfinite", broken)


def damage(store: Store, uid: str, newest: int = 1) -> None:
    """Flips a bit in a blob of each of the newest checkpoints."""
    digests = [next(iter(checkpoint.blobs)) for checkpoint in store.checkpoints(uid)[-newest:]]

    def work(connection: sa.Connection) -> None:
        for digest in digests:
            data = connection.execute(sa.select(blob.c.data).where(blob.c.digest == digest)).scalar_one()
            flipped = data[:-1] + bytes([data[-1] ^ 1])
            connection.execute(blob.update().where(blob.c.digest == digest).values(data=flipped))

    store.database.write(work)
