"""Workers of several studies: shares of time by weight, and the bits that each study has alone."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import rekindle
from rekindle.studies.cli import main
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.errors import BadConfig, DamagedCheckpoint, UnknownStudy
from rekindle.studies.options.entries import parse_weight
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.rows import Work
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.upkeep.deleting import delete
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers.forked import CommandProcess
from rekindle.studies.workers.sharing import in_turn, sharing_worker
from rekindle.studies.workers.worker import Worker
from studying import bits, run, sqlite_first, surrogate, tiny, undisturbed
from test_worker import damage

Cli = Callable[..., tuple[int, str, str]]
SMALL = {"a": tiny(2, (1, 2, 2)), "b": surrogate(3)}


def long(weight: float, trials: int = 28, seconds: float = 0.01) -> Config:
    """A study of many short trainings, which can always go on."""
    made: dict[str, Any] = {"sampler": "random", "seed": int(weight), "fixed": {"seconds": seconds}}
    made["options"] = {"weight": weight}
    return surrogate(trials, scheduler="none", epochs=(4,), generation=trials, **made)


def begin(store: Store, **options: Any) -> None:
    """Two studies with all of their trials: a worker that is killed while it makes some keeps others from it."""
    for name, weight in (("a", 3.0), ("b", 1.0)):
        start_study(store, name, long(weight, **options))
        StudyRunner(store, name).advance()


def epochs(store: Store, name: str) -> int:
    return sum(store.reached([trial.uid for trial in store.trials(name)]).values())


def seconds(store: Store, name: str) -> float:
    return sum(store.trained_for([trial.uid for trial in store.trials(name)]).values())


def history(*pieces: tuple[str, float] | tuple[str, float, bool]) -> list[Work]:
    return [Work(study, seconds, bool(runs)) for study, seconds, *runs in pieces]


def test_the_turn_is_whose_share_was_least_since_all_take_part() -> None:
    weights = {"a": 3.0, "b": 1.0}
    assert in_turn([], weights) == ["a", "b"]
    assert in_turn(history(("a", 100.0)), weights) == ["b", "a"]  # who had nothing yet is next
    assert in_turn(history(("a", 100.0), ("b", 1.0)), weights) == ["a", "b"]  # what was before b began does not count
    assert in_turn(history(("a", 0.0), ("b", 1.0), ("a", 2.9)), weights) == ["a", "b"]
    assert in_turn(history(("a", 0.0), ("b", 1.0), ("a", 3.1)), weights) == ["b", "a"]
    running = history(("a", 2.0), ("b", 1.0), ("a", 2.0), ("a", 0.0, True))  # which will take 2, as before
    assert in_turn(running, weights) == ["b", "a"]
    assert in_turn(history(("a", 0.0), ("b", 9.0), ("c", 99.0), ("a", 2.0)), weights) == ["a", "b"]  # c is another's


def test_the_turns_of_many_pieces_keep_the_shares() -> None:
    weights, work = {"a": 3.0, "b": 1.0, "c": 0.5}, list[Work]()
    seconds = {"a": 1.0, "b": 5.0, "c": 0.2}
    for _ in range(1500):
        name = in_turn(work[-500:], weights)[0]
        work.append(Work(name, seconds[name], False))
    had = {name: sum(piece.seconds for piece in work if piece.study == name) for name in weights}
    shares = {name: had[name] / sum(had.values()) for name in weights}
    assert shares == pytest.approx({"a": 3 / 4.5, "b": 1 / 4.5, "c": 0.5 / 4.5}, rel=0.05)


def test_two_workers_share_their_epochs_by_weight(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        begin(store)

        def one() -> None:
            with Store(sqlite_url) as worker_store:
                enough = lambda: sum(task.epochs for task in worker_store.tasks()) >= 100  # noqa: E731
                assert not sharing_worker(worker_store, [], lambda study, text: None, workers=2000).run(enough)

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert epochs(store, "a") + epochs(store, "b") >= 100
        trained = {name: seconds(store, name) for name in "ab"}
        pieces = [piece.seconds for piece in store.last_work(["a", "b"], 500)]
        late = 2 * max(pieces) / sum(pieces)  # a piece that a busy machine holds up is made up for by later ones
        assert trained["a"] / sum(trained.values()) == pytest.approx(0.75, abs=0.075 + late)


@sqlite_first
@pytest.mark.slow
def test_shares_are_kept_though_workers_are_killed(url: str, wait_until: Callable[..., None]) -> None:
    with Store(url) as store:
        begin(store, trials=80, seconds=0.1)
        words = ["worker", "--workers", "2000", "--quiet"]
        crew = [CommandProcess([*words, *more], url) for more in ([], ["--study", "a", "--study", "b"])]
        deaths, least = 0, 20
        while (done := epochs(store, "a") + epochs(store, "b")) < 300:
            if done > least:
                victim = crew.pop(0)
                victim.process.kill()
                victim.wait(10)
                assert victim.status == -signal.SIGKILL
                crew.append(CommandProcess(words, url))
                deaths, least = deaths + 1, done + 50
            assert all(worker.status is None for worker in crew), [list(worker.last_words) for worker in crew]
            time.sleep(0.05)
        for worker in crew:
            worker.stop()
        for worker in crew:
            worker.wait(30)
        assert deaths >= 4
        assert [worker.status for worker in crew] == [128 + signal.SIGTERM] * 2
        trained = {name: epochs(store, name) for name in "ab"}
        assert trained["a"] / sum(trained.values()) == pytest.approx(0.75, rel=0.1), store.last_work(["a", "b"], 500)
        assert {finding.kind for finding in check(store)} <= {"lease"}  # of the last one that was killed


def test_each_study_has_the_bits_that_it_has_alone(sqlite_url: str, cli: Cli) -> None:
    with Store(sqlite_url) as store:
        for name, config in SMALL.items():
            start_study(store, name, config)
        status, out, errors = cli("worker", "--study", "a", "--study", "b", "--storage", sqlite_url, "--json")
        assert status == 0
        assert [study["state"] for study in json.loads(out)["studies"]] == ["complete"] * 2
        lines = errors.splitlines()
        assert "works on studies a, b in" in lines[0]
        assert sum(line.startswith("a: trial ") for line in lines) >= 2
        assert lines[-2:] == ["study a is complete", "study b is complete"]
        assert {name: bits(store, name) for name in SMALL} == {name: undisturbed(SMALL[name]) for name in SMALL}


def test_studies_that_are_made_meanwhile_are_found_and_stopped_ones_left(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.studies.workers.sharing.LOOK_EVERY", 0.0)
    said: list[tuple[str, str]] = []
    with Store(sqlite_url) as store:
        start_study(store, "a", surrogate(2))
        start_study(store, "stopped", surrogate(2, seed=1))
        Steering(store, "stopped").stop()
        store.change_study("foreign", lambda _: surrogate(2, seed=2).to_json() | {"task_version": 99})

        def say(study: str, text: str) -> None:
            said.append((study, text))
            if len(said) == 3:
                start_study(store, "later", surrogate(2, seed=4))

        assert not rekindle.work(store, say=say)
        states = {name: {trial.state for trial in store.trials(name)} for name in ("a", "later", "stopped")}
        assert states == {"a": {"complete", "pruned"}, "later": {"complete", "pruned"}, "stopped": set()}
        [left] = [text for study, text in said if study == "foreign"]
        assert left.startswith("is left to others: the study was started with surrogate 99, but")
        Steering(store, "stopped").resume()
        assert rekindle.work(store, "stopped", "a")


def test_a_study_that_is_deleted_or_made_anew_disturbs_no_other(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.studies.workers.sharing.LOOK_EVERY", 0.0)
    said: list[tuple[str, str]] = []
    anew, other = surrogate(4, seed=3), surrogate(3, seed=1)
    with Store(sqlite_url) as store:
        for name in ("a", "gone"):
            run(sqlite_url, surrogate(2), name)
        start_study(store, "b", other)

        def say(study: str, text: str) -> None:
            if {study for study, _ in said} == set() and study == "b":
                for name in ("a", "gone"):
                    assert delete(store, name, dry_run=False).study == name
                start_study(store, "a", anew)
            said.append((study, text))

        assert rekindle.work(store, say=say)
        assert any(text.startswith("is trained no longer: there is no study 'gone'") for _, text in said)
        assert (bits(store, "a"), bits(store, "b")) == (undisturbed(anew), undisturbed(other))
        worker = sharing_worker(store, ("a", "b"), say)
        delete(store, "a", dry_run=False)
        with pytest.raises(UnknownStudy, match="there is no study 'a'"):  # after it has trained the others
            worker.run()


def test_a_worker_calls_complete_what_is_complete_alone(sqlite_url: str, cli: Cli) -> None:
    with Store(sqlite_url) as store:
        run(sqlite_url, surrogate(2), "a")
        store.change_study("foreign", lambda _: surrogate(2, seed=2).to_json() | {"task_version": 99})
        status, _, errors = cli("worker", "--storage", sqlite_url)
        assert status == 0
        assert "study a is complete" in errors
        assert "study foreign is complete" not in errors


def test_a_weight_belongs_to_the_study_and_is_a_row(sqlite_url: str, cli: Cli) -> None:
    end = ["--storage", sqlite_url]
    made = ["create", "surrogate", "CartPole-v1", "--trials", "2", "--study", "s", *end]
    assert cli(*made, "--weight", "3")[0] == 0
    assert cli(*made)[0] == 0  # which leaves the weight as it is
    assert "weight" in cli("status", *end)[1]
    with Store(sqlite_url) as store:
        assert store.study("s").config["options"]["weight"] == 3.0
        assert cli("extend", "s", "--weight", "0.5", "--why", "urgent work", *end)[0] == 0
        assert store.study("s").config["options"]["weight"] == 0.5
        [command] = store.commands("s")
        assert (command.kind, command.data, command.why) == ("weight", {"weight": 0.5}, "urgent work")
        assert json.loads(cli("status", *end, "--json")[1])["studies"][0]["weight"] == 0.5
        rekindle.studies.Study("s", store).extend(weight=2)
        assert store.study("s").config["options"]["weight"] == 2.0


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "3:1", "", "1e9"])
def test_a_weight_is_a_number_within_bounds(text: str) -> None:
    with pytest.raises(BadConfig, match=f"--weight must be a number from 0.001 to 1000, such as 3, but got '{text}'"):
        parse_weight(text)


def test_a_damaged_study_is_left_and_the_others_are_trained(sqlite_url: str) -> None:
    configs = {"a": tiny(3, (1, 2, 2), scheduler="halving"), "b": surrogate(2, seed=1)}
    said = list[tuple[str, str]]()
    with Store(sqlite_url) as store:
        for name, config in configs.items():
            start_study(store, name, config)

        assert not Worker(store, "a").run(lambda: [row.state for row in store.segments("a")] == ["done"] * 3)
        for trial in store.trials("a"):  # of which some are promoted
            damage(store, trial.uid, 2)
        worker = sharing_worker(store, ("a", "b"), lambda name, text: said.append((name, text)))
        with pytest.raises(DamagedCheckpoint):
            worker.run()
        assert [name for name, text in said if "is left to others: " in text] == ["a"]
        assert bits(store, "b") == undisturbed(configs["b"])
        with pytest.raises(DamagedCheckpoint):  # who trains that study alone is told at once
            sharing_worker(store, ("a",), lambda name, text: None).run()
        assert sharing_worker(store, ("a",), lambda name, text: None, use_previous=True).run()
        assert bits(store, "a") == undisturbed(configs["a"])


def test_a_store_that_work_opens_is_closed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = list[Store](), Store.close
    monkeypatch.setattr(Store, "close", lambda store: closed.append(store) or close(store))
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(2))
        assert rekindle.work(sqlite_url, "s")
        assert len(closed) == 1
        assert rekindle.work(store, "s")
        assert store not in closed
        with pytest.raises(UnknownStudy):
            rekindle.work(sqlite_url, "other")
        assert len(closed) == 2


def test_a_study_that_a_worker_cannot_share_is_an_error(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(sqlite_url) as store:
        with pytest.raises(UnknownStudy, match=r"trains studies, but .* has none yet; `rekindle create` makes one"):
            rekindle.work(store)
        start_study(store, "s", surrogate(2))
        with pytest.raises(ValueError, match="a worker trains a study once, but 's' is named twice; leave one out"):
            rekindle.work(store, "s", "s")
        with pytest.raises(UnknownStudy, match="there is no study 'other'"):
            rekindle.work(store, "s", "other")
    assert main(["worker", "--study", "s", "--study", "s", "--storage", sqlite_url]) == 2
    assert "is named twice" in capsys.readouterr().err
