"""Failures in workers: which are retried, how often, when a worker gives up, and what is recorded."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from rekindle.studies.cli import main
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.failures import FAILED, RETRY_RULES
from rekindle.studies.storage.failure_history import FailureHistory
from rekindle.studies.storage.locks.fencing import TAKEN
from rekindle.studies.storage.sql.schema import event as event_table
from rekindle.studies.storage.sql.schema import task
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers import training
from rekindle.studies.workers.sharing import run_worker
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from rekindle.tasks.algorithms.ppo import PPOLearner
from rekindle.tasks.checkpoint.storage import Write
from rekindle.tasks.evaluation.objective import Evaluated, evaluate_within
from rekindle.tasks.learner import Learner
from studying import TINY, bits, run, tiny, undisturbed

FORK = multiprocessing.get_context("fork")


class Panic(BaseException):
    """What a simulator in Rust raises: PyO3's PanicException is no Exception either."""


class Flaky(CartPoleEnv):
    """A CartPole that crashes once for each error in `crashes`, and is a CartPole otherwise."""

    crashes: list[BaseException]

    def step(self, action: Any) -> Any:
        if Flaky.crashes:
            raise Flaky.crashes.pop()
        return super().step(action)


gym.register("Flaky-v0", entry_point=Flaky, max_episode_steps=500)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for failure_kind, policy in RETRY_RULES.items():
        monkeypatch.setitem(RETRY_RULES, failure_kind, replace(policy, pause=0.0))  # type: ignore[index]
    monkeypatch.setattr(Flaky, "crashes", [], raising=False)


@pytest.fixture
def unfinished(sqlite_url: str) -> Iterator[Store]:
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny())
        yield store


def flaky(**options: Any) -> Any:
    return tiny(3, (1, 2, 2), env="Flaky-v0", **options)


def failed(store: Store) -> list[dict[str, Any]]:
    """What the events say of failures, the oldest first."""
    events = [event for trial in store.trials("s") for event in store.events(trial.uid) if event.kind == FAILED]
    return [event.data for event in sorted(events, key=lambda event: event.created)]


def of_trial(learner: Any, params: dict[str, Any]) -> bool:
    """Whether a trial with these hyperparameters is trained in this learner."""
    return any(abs(float(x) - params["optimizer.lr"]) < 1e-9 for x in learner.hp.optimizer.lr.flatten())


@pytest.mark.parametrize(
    ("error", "failure_kind", "times"),
    [
        pytest.param(ValueError("the simulator is upset"), "environment", 2, marks=pytest.mark.slow),
        (MemoryError("no memory"), "memory", 3),
        (SystemExit(3), "environment", 2),
        (Panic("index 7"), "environment", 2),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_transient_failure_is_retried_and_changes_no_result(
    sqlite_url: str, error: BaseException, failure_kind: str, times: int
) -> None:
    whole = undisturbed(flaky())
    Flaky.crashes = [error] * times
    assert run(sqlite_url, flaky(), workers=100) == whole
    assert Flaky.crashes == []
    with Store(sqlite_url) as store:
        notes = failed(store)
        assert [(note["kind"], note["retry"], note["alone"], note["epochs"]) for note in notes] == [
            (failure_kind, True, True, 0)
        ] * times
        assert all("in step" in note["report"] for note in notes)
        assert check(store) == []


@pytest.mark.parametrize("error", [SystemExit(0), Panic("index 7")], ids=repr)
def test_a_training_that_its_environment_ends_has_failed(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    Flaky.crashes = [error]
    settings = [f"--set={name}={value}" for name, value in TINY.items()]
    assert main(["train", "ppo", "Flaky-v0", "--epochs", "1", *settings]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"Flaky-v0: the environment's own code raised {type(error).__name__}: {error}" in said
    assert "test_retries.py, line" in said


def test_a_trial_that_failed_in_a_cohort_is_trained_alone_at_once(sqlite_url: str) -> None:
    whole = undisturbed(flaky(cohort=3))
    Flaky.crashes = [ValueError("the simulator is upset")]
    assert run(sqlite_url, flaky(cohort=3)) == whole
    with Store(sqlite_url) as store:
        assert failed(store) == []
        events = [event for trial in store.trials("s") for event in store.events(trial.uid) if event.kind in TAKEN]
        assert [event.data.get("study") for event in events] == ["s"] * len(events)
        assert len(events) > 3  # each was trained alone after the cohort


def test_a_permanent_failure_keeps_its_traceback_and_the_study_continues(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Flaky.crashes = [ValueError("the simulator is upset") for _ in range(3)]
    result = run(sqlite_url, flaky(), workers=100)
    assert [trial[4] for trial in result["trials"]].count("failed") == 1
    error = result["trials"][0][5]
    assert error.startswith("[environment] Traceback")
    assert "in step" in error
    assert error.strip().endswith("ValueError: the simulator is upset")
    with Store(sqlite_url) as store:
        assert [note["retry"] for note in failed(store)] == [True, True, False]
        uid = store.trials("s")[0].uid
    assert main(["show", uid, "--storage", sqlite_url]) == 0
    output = capsys.readouterr().out
    assert "trial 0 of study s failed" in output
    assert "in step" in output
    assert main(["trials", "s", "--storage", sqlite_url]) == 0
    assert "trial 0 failed: ValueError: the simulator is upset" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "stored"), [("a\0b", r"a\x00b"), ("a\udcffb", r"a\udcffb")])
def test_an_error_that_no_database_can_store_fails_its_trial_alone(url: str, text: str, stored: str) -> None:
    """PostgreSQL has no NUL; half of a pair of surrogates stands for a byte that is no text, as in names of files."""
    whole = undisturbed(flaky())
    Flaky.crashes = [ValueError(text) for _ in range(3)]
    result = run(url, flaky(), workers=100)
    assert [trial[4] for trial in result["trials"]].count("failed") == 1
    assert [trial[1] for trial in result["trials"]] == [trial[1] for trial in whole["trials"]]
    assert result["trials"][0][5].strip().endswith(f"ValueError: {stored}")


def test_a_nan_is_never_tried_again(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPOLearner, "find_nonfinite", lambda learner, metrics: ["the loss became nan"])
    result = run(sqlite_url, tiny(3))
    assert {trial[4] for trial in result["trials"]} == {"failed"}
    with Store(sqlite_url) as store:
        assert [(note["kind"], note["retry"]) for note in failed(store)] == [("diverged", False)] * 3


def test_a_return_that_is_no_number_fails_the_trial(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_return(*arguments: Any, **options: Any) -> list[Evaluated]:
        return [evaluation._replace(value=math.nan) for evaluation in evaluate_within(*arguments, **options)]

    monkeypatch.setattr(training, "evaluate_within", without_return)
    result = run(sqlite_url, tiny(3))
    assert {trial[4] for trial in result["trials"]} == {"failed"}
    assert all("the evaluation return became nan" in trial[5] for trial in result["trials"])


@pytest.mark.slow
def test_a_trial_that_keeps_killing_its_workers_fails_alone(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(2, (1, 2, 2))
    whole = undisturbed(config)
    params = whole["trials"][1][2]
    iterate = PPOLearner.iterate

    def deadly(learner: PPOLearner) -> Any:
        if of_trial(learner, params):
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when there is no memory
        return iterate(learner)

    monkeypatch.setattr(PPOLearner, "iterate", deadly)
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
    deaths = 0
    while (status := in_a_fork(sqlite_url)) == -signal.SIGKILL:
        deaths += 1
    assert (status, deaths) == (0, 5)
    with Store(sqlite_url) as store:
        result = bits(store)
        assert [trial[4] == "failed" for trial in result["trials"]] == [False, True]
        assert result["trials"][1][5].startswith("Killed: 5 processes in a row that trained it were killed, or fell si")
        [note] = failed(store)
        assert (note["kind"], note["retry"], note["epochs"]) == ("killed", False, 0)
        assert check(store) == []
    assert [row for row in result["segments"] if row.rung == 0 and row.number != 1] == [
        row for row in whole["segments"] if row.rung == 0 and row.number != 1
    ]


def in_a_fork(url: str) -> int | None:
    """The exit status of a worker that is a process of its own."""
    worker = FORK.Process(target=_work, args=(url,))
    worker.start()
    worker.join()
    return worker.exitcode


def _work(url: str) -> None:
    with Store(url) as store:
        assert Worker(store, "s").run()


def test_kills_count_from_the_last_new_epoch_and_make_the_trial_train_alone(
    unfinished: Store, child: Callable[..., Any]
) -> None:
    killer = """
import os, signal, sys
from rekindle.studies.storage.store import Store
from rekindle.tasks.checkpoint.storage import Write
store = Store(sys.argv[1])
[(lease, history)] = store.claim("s", ["a"])
if sys.argv[2] == "save":
    store.save([Write(lease, 1, b"1", {})])
os.kill(os.getpid(), signal.SIGKILL)
"""
    url = unfinished.database.url.render_as_string(hide_password=False)

    def kill(*how: str) -> FailureHistory:
        child(killer, url, *how, "").process.wait()
        return unfinished.histories(["a"]).get("a", FailureHistory())

    assert [kill().killed for _ in range(3)] == [0, 2, 3]  # nobody asks how the first one ended
    history = kill()
    doom = history.after_kills()
    assert (history.killed, history.epochs, history.alone) == (4, 0, True)
    assert doom is not None
    assert doom[1].retry
    assert kill("save").killed == 1  # one more, but an epoch further
    assert kill().killed == 2
    [(lease, _)] = unfinished.claim("s", ["b", "a"])
    assert lease.uid == "b"
    lease.release()
    history = [kill() for _ in range(3)][-1]
    doom = history.after_kills()
    assert doom is not None
    assert not doom[1].retry
    assert "before they finished epoch 2" in str(doom[0])


@pytest.mark.slow
def test_a_trial_is_not_blamed_for_deaths_on_a_machine_where_others_die(
    unfinished: Store, child: Callable[..., Any]
) -> None:
    killer = """
import os, signal, sys
from rekindle.studies.storage.store import Store
claimed = Store(sys.argv[1]).claim("s", sys.argv[2:])
os.kill(os.getpid(), signal.SIGKILL)
"""
    url = unfinished.database.url.render_as_string(hide_password=False)

    def kill(*uids: str) -> FailureHistory:
        child(killer, url, *uids).process.wait()
        return unfinished.histories(["a"]).get("a", FailureHistory())

    def is_tried_again(history: FailureHistory) -> bool:
        after = history.after_kills()
        assert after is not None
        assert after[1].alone == after[1].retry
        return after[1].retry

    for _ in range(4):
        history = kill("a")
    assert is_tried_again(history)
    for _ in range(3):  # of whom the first two are noticed when their task is taken over
        kill("b")
    history = kill("a")
    assert (history.killed, history.other_deaths, is_tried_again(history)) == (5, 2, True)
    assert [is_tried_again(kill("a")) for _ in range(2)] == [True, False]


def test_paused_tasks_and_those_that_train_alone_are_not_claimed_with_others(unfinished: Store) -> None:
    def note(uid: str, **what: Any) -> None:
        with unfinished.open(uid, {}) as lease:
            event = {"kind": "memory", "retry": True, "epochs": 0, "alone": True, "pause": 0.0, **what}
            unfinished.save([Write(lease, 0, events=[(FAILED, event)])])

    def claimed(*uids: str, limit: int = 8) -> list[str]:
        leases = [lease for lease, _ in unfinished.claim("s", uids, limit)]
        names = [lease.uid for lease in leases]
        unfinished.release(leases)
        return names

    assert claimed("a", "b", "c") == ["a", "b", "c"]
    note("b")
    assert claimed("a", "b", "c") == ["a", "c"]
    assert claimed("b", "a") == ["b"]
    note("b", pause=1000.0)
    assert claimed("b", "a") == ["a"]
    assert claimed("b") == []
    assert 50 < unfinished.histories(["b"])["b"].retry_in <= 60  # no longer than its policy lets it rest
    later = {"created": event_table.c.created + 3600}
    future = event_table.update().where(event_table.c.kind == FAILED).values(later)
    unfinished.database.write(lambda c: c.execute(future))  # the clock was set back since
    assert unfinished.histories(["b"])["b"].retry_in == 0
    assert claimed("b", "a") == ["b"]
    note("b", retry=False)
    assert claimed("b", "a") == ["b", "a"]
    assert unfinished.histories(["b"])["b"].failed.total() == 0


def test_one_lost_lease_takes_nothing_from_the_rest_of_a_cohort(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, said, trained = tiny(3, (3, 3, 2), cohort=3), list[str](), list[int]()
    whole = undisturbed(config)
    run_epoch = Learner.run_epoch
    with Store(sqlite_url) as store:
        start_study(store, "s", config)

        def steal(learner: Learner, *arguments: Any, **more: Any) -> Any:
            if learner.epochs == 1 and not said and len(trained) == 1:  # somebody else takes one, and dies of it
                uid = store.trials("s")[2].uid
                values = {"lease_epoch": task.c.lease_epoch + 1, "lease_owner": "x:y:1:z", "lease_expires": 0}
                store.database.write(lambda c: c.execute(task.update().where(task.c.uid == uid).values(**values)))
            trained.append(learner.members)
            return run_epoch(learner, *arguments, **more)

        monkeypatch.setattr(Learner, "run_epoch", steal)
        assert Worker(store, "s", say=said.append).run()
        assert bits(store) == whole
    assert len(said) == 1
    assert said[0].startswith("trial 2 (")
    assert "is held by another process now" in said[0]
    assert trained == [3] * 3 + [1] * 2  # the others went on; it was carried on after its first epoch


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["trial 0", "trial 1"]),
        ({"seeds": 2, "seed": 5}, [f"trial {n}, seed {seed}" for n in (0, 1) for seed in (5, 6)]),
        ({"across": "mean"}, [f"trial {n}, {env}" for n in (0, 1) for env in ("CartPole-v1", "Flaky-v0")]),
    ],
    ids=["one seed", "seeds", "environments"],
)
def test_messages_number_trials_as_the_command_trials_does(
    options: dict[str, Any], names: list[str], sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = ["CartPole-v1", "Flaky-v0"] if "across" in options else "CartPole-v1"
    config = study_config(load("ppo"), env, trials=2, epochs=1, fixed=TINY, **options)
    monkeypatch.setattr(PPOLearner, "find_nonfinite", lambda learner, metrics: ["the loss became nan"])
    said = list[str]()
    run(sqlite_url, config, say=said.append)
    with Store(sqlite_url) as store:
        uids = [row.uid for row in store.trials("s")]
    assert sorted(text.partition(" failed: ")[0] for text in said) == [
        f"{name} ({uid[:8]})" for name, uid in zip(names, uids, strict=True)
    ]


def test_a_signal_ends_a_worker_that_waits_for_its_database(unfinished: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.studies.errors import StoreFull

    def no_room(store: Store, writes: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise StoreFull("no room")

    monkeypatch.setattr(Store, "save", no_room)
    options: dict[str, Any] = {"workers": 1, "use_previous": False, "with_parent": False}
    assert run_worker(unfinished, ["s"], **options) == 128 + signal.SIGTERM
    assert unfinished.workers() == []


def test_a_machine_that_cannot_train_a_study_fails_no_trial(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **more: Any) -> None:
        raise gym.error.DependencyNotInstalled("no such simulator here")

    with Store(sqlite_url) as store:
        start_study(store, "s", flaky())
        assert not Worker(store, "s").run(lambda: bool(store.trials("s")))
        monkeypatch.setattr(Flaky, "__init__", missing)
        with pytest.raises(Exception, match="no such simulator here"):
            run_worker(store, ["s"], workers=1, use_previous=False, with_parent=False)
        assert {trial.state for trial in store.trials("s")} == {"running"}
