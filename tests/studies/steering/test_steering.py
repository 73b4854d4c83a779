"""Commands to a running study: workers obey, invalid commands are refused, and decisions follow from rows."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rekindle.studies import Study
from rekindle.studies.cli import main
from rekindle.studies.engine.checked_config import make_population
from rekindle.studies.engine.confirmations import confirmation_config, start_confirmation
from rekindle.studies.engine.ranking import rank
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.snapshots import StudyProgress
from rekindle.studies.engine.status_views import status_view
from rekindle.studies.engine.study_views import study_view, summary_view
from rekindle.studies.errors import BadConfig, CommandRefused, LeaseLost
from rekindle.studies.schedulers.seeds import seed_options
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.rows import Result
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers import training
from rekindle.studies.workers.supervisor import WorkerProcess
from rekindle.studies.workers.worker import Turn, Worker
from rekindle.tasks import load
from replaying import assert_follows_from_rows
from studying import bits, sqlite_first, surrogate, tiny, undisturbed


def during_epoch(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> list[int]:
    """Calls a function while some epoch is trained; returns how many members each epoch has had."""
    learner, epochs = load("surrogate").learner, list[int]()
    run_epoch = learner.run_epoch

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        epochs.append(self.members)
        if len(epochs) == number:
            do()
        return run_epoch(self, *args, **kwargs)

    monkeypatch.setattr(training, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(learner, "run_epoch", run)
    return epochs


@sqlite_first
def test_a_stopped_study_carries_on_with_the_same_bits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = surrogate()
    expected = undisturbed(config)
    with Store(url) as store:
        start_study(store, "s", config)
        steering = Steering(store, "s", "ana@laptop")
        trained = during_epoch(monkeypatch, 7, lambda: steering.stop("enough"))
        worker = Worker(store, "s")
        assert not worker.run()
        assert str(worker.hold) == "stop by ana@laptop: enough"
        assert sum(task.epochs for task in store.tasks()) == sum(trained)  # finished and saved
        assert len(trained) == 7
        assert not store.claims()
        assert not Worker(store, "s").run()
        with pytest.raises(CommandRefused, match="study 's' is held already, by the stop by ana@lap"):
            steering.stop()
        steering.resume()
        assert Worker(store, "s").run()
        assert bits(store) == expected
        kinds = [(command.kind, command.who, command.why) for command in store.commands("s")]
        assert kinds == [("stop", "ana@laptop", "enough"), ("resume", "ana@laptop", "")]


def test_workers_wait_while_a_study_is_paused(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = surrogate()
    expected = undisturbed(config)
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        study = Study("s", store)
        trained = during_epoch(monkeypatch, 5, study.pause)
        waits = threading.Event()
        worker = Worker(store, "s")
        thread = threading.Thread(target=worker.run, args=(waits.is_set,))
        thread.start()
        while not (study.commands and worker.hold):
            assert thread.is_alive()
        assert sum(task.epochs for task in store.tasks()) == sum(trained)
        study.resume()
        thread.join()
        assert bits(store) == expected


@sqlite_first
def test_a_cancelled_trial_frees_its_worker_within_an_epoch(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with Store(url) as store:
        start_study(store, "s", surrogate(scheduler="none", epochs=(50,), trials=2))
        during_epoch(monkeypatch, 3, lambda: Steering(store, "s", "ana").cancel(0, "diverges"))
        assert Worker(store, "s", say=said.append).run()
        first, second = store.trials("s")
        assert (first.state, first.error, second.state) == ("cancelled", "cancel by ana: diverges", "complete")
        assert [task.epochs <= 3 for task in store.tasks([first.uid])] == [True]
        assert said == [f"trial 0 ({first.uid[:8]}) was ended by the command cancel by ana: diverges"]
        assert not list(check(store))
        with pytest.raises(CommandRefused, match="only a running trial can be cancelled, but trial 0 of study 's' is "):
            Steering(store, "s").cancel(0)
        with pytest.raises(CommandRefused, match="there is no trial 9 of study 's'; `rekindle trials s` shows them"):
            Steering(store, "s").cancel(9)
        assert len(store.commands("s")) == 1


@pytest.mark.parametrize("cohort", [1, 2])
@pytest.mark.parametrize("fails", ["diverges", "raises"])
def test_a_trial_may_fail_in_the_epoch_in_which_it_is_cancelled(
    url: str, monkeypatch: pytest.MonkeyPatch, fails: str, cohort: int
) -> None:
    said: list[str] = []
    learner = load("surrogate").learner
    with Store(url) as store:
        start_study(store, "s", surrogate(2, scheduler="none", epochs=(5,), cohort=cohort, generation=2))
        during_epoch(monkeypatch, 1, lambda: Steering(store, "s", "ana").cancel(0, "looks bad"))
        run_epoch = learner.run_epoch

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            first = not store.commands("s")
            metrics = run_epoch(self, *args, **kwargs)
            if first and fails == "raises":
                raise ValueError("the simulator does not like it")
            return [{"episode_return": float("nan")}, *metrics[1:]] if first else metrics

        monkeypatch.setattr(learner, "run_epoch", run)
        assert Worker(store, "s", say=said.append).run()
        assert [trial.state for trial in store.trials("s")] == ["cancelled", "complete"]
        uid = store.trials("s")[0].uid
        assert said == [f"trial 0 ({uid[:8]}) was ended by the command cancel by ana: looks bad"]
        assert not list(check(store))


@pytest.mark.parametrize("study", ["confirmation", "population", "seeds"])
def test_a_trial_that_is_cancelled_between_two_segments_gets_no_further_one(sqlite_url: str, study: str) -> None:
    """Its worker would train it again and again, since late results of cancelled trials are refused."""
    with Store(sqlite_url) as store:
        if study == "population":
            start_study(store, "s", make_population(load("surrogate"), None, population=4, epochs=6, interval=3))
        else:
            start_study(store, "s", surrogate(options=seed_options(2 if study == "seeds" else 1, "mean")))
        name, number = "s", 0
        if study == "confirmation":
            assert Worker(store, "s").run()
            config = confirmation_config(store, "s", 2, 3)
            name, number = start_confirmation(store, "s", config), config.options["confirms"]["defaults"]
        worker = Worker(store, name)
        while worker.turn() is not Turn.TRAINED or any(row.state == "ready" for row in store.segments(name)):
            pass
        trained = store.segments(name)
        cancelled = store.trials(name)[number].uid if study == "seeds" else number
        Steering(store, name).cancel(cancelled)
        assert any(worker.turn() is Turn.COMPLETE for _ in range(100))
        ended = [trial.number for trial in store.trials(name) if trial.state == "cancelled"]
        later = [row for row in store.segments(name) if row.number in ended and row not in trained]
        assert later or study != "confirmation"
        assert {row.state for row in later} <= {"failed"}
        assert not list(check(store))


def test_a_cancelled_trial_has_not_failed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(2, scheduler="none", epochs=(9,)))
        during_epoch(monkeypatch, 2, lambda: Steering(store, "s", "ana").cancel(0, "diverges"))
        assert Worker(store, "s").run()
        trial = store.trials("s")[0]
    assert main(["trials", "s", "--storage", sqlite_url]) == 0
    told = capsys.readouterr().out
    assert "trial 0 was ended by the command cancel by ana: diverges" in told
    assert "trial 0 failed" not in told
    assert main(["show", trial.uid, "--storage", sqlite_url]) == 0
    assert "trial 0 of study s was ended by the command\ncancel by ana: diverges" in capsys.readouterr().out


def test_late_writes_of_a_cancelled_trial_are_refused(store: Store) -> None:
    """Its task may have been leased again, so that the lease alone would allow them."""
    start_study(store, "s", surrogate(2, scheduler="none", epochs=(5,), generation=2))
    first, second = StudyRunner(store, "s").advance()
    Steering(store, "s").cancel(0)
    with store.open(first.trial.uid, None) as late, store.open(second.trial.uid, None) as other:
        results = [Result(late, 0, 0, 1.0, "d"), Result(other, 1, 0, 1.0, "d")]
        with pytest.raises(LeaseLost, match="a command has cancelled its trial") as refused:
            store.finish_segments("s", results)
        assert refused.value.uids == (late.uid,)
        with pytest.raises(LeaseLost, match="a command has cancelled its trial"):
            store.fail_trial(late, "s", 0, 0, "it broke")
        store.finish_segments("s", results[1:])
    assert [row.state for row in store.segments("s")] == ["failed", "done"]


def test_an_excluded_trial_is_promoted_no_further_and_taught_to_no_sampler(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is then as if the trial had failed: the decisions are those of a study in which it did."""
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate())
        study = Study("s", store)
        best: list[int] = []

        def exclude() -> None:
            row = max((row for row in store.segments("s") if row.state == "done"), key=lambda row: row.score or 0.0)
            best.append(row.number)
            study.exclude(row.number, "a bug of the simulator")

        during_epoch(monkeypatch, 2, exclude)
        assert Worker(store, "s").run()
        assert store.trials("s")[best[0]].state == "cancelled"
        with pytest.raises(CommandRefused, match="is excluded already"):
            study.exclude(best[0])
        reached = {row.number for row in store.segments("s") if row.rung == 2 and row.state == "done"}
        assert reached
        assert best[0] not in reached
        assert study.trials[best[0]].epochs == 1  # people still see its results
        assert not list(check(store))
        assert_follows_from_rows(store)


def test_a_refused_trial_is_named_by_the_number_that_was_given(store: Store) -> None:
    start_study(store, "s", surrogate(4, scheduler="none", epochs=(2,), options=seed_options(2, "mean")))
    StudyRunner(store, "s").advance()
    steering = Steering(store, "s")
    for number in (-1, 9, 10**20):
        with pytest.raises(
            CommandRefused, match=rf"there is no trial {number} of study 's'; `rekindle trials s` shows"
        ):
            steering.cancel(number)
    assert steering.cancel(1).data == {"trials": [2, 3]}
    with pytest.raises(CommandRefused, match="only a running trial can be cancelled, but trial 1 of study 's' is canc"):
        steering.cancel(1)
    assert steering.exclude(1).data == {"trials": [2, 3]}
    with pytest.raises(CommandRefused, match="trial 1 of study 's' is excluded already"):
        steering.exclude(1)


@pytest.mark.parametrize("seeds", [1, 2])
def test_an_excluded_trial_is_never_the_best(sqlite_url: str, seeds: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Its result may be that of a fault of the simulator; people still see it, and that it does not count."""
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(4, scheduler="none", epochs=(2,), options=seed_options(seeds, "mean")))
        study = Study("s", store).run(progress=False)
        ranked = rank(study_view(store, "s").trials)
        first, second = (trial.number for trial in ranked[:2])
        assert study.best is not None
        assert (study.best.number, summary_view(store, "s").to_json()["best"]["number"]) == (first, first)
        watched = StudyProgress(store, "s")
        assert watched.look().best.trial == first  # type: ignore[union-attr]
        study.exclude(first, "a fault of the simulator")
        assert [progress.look().best.trial for progress in (watched, StudyProgress(store, "s"))] == [second] * 2  # type: ignore[union-attr]
        assert (study.best.number, study.front[0].number) == (second, second)
        assert summary_view(store, "s").to_json()["best"]["number"] == second
        assert first not in confirmation_config(store, "s", 2, 3).options["confirms"]["trials"]
    assert main(["trials", "s", "--storage", sqlite_url]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "excluded" in line]
    assert line.split()[0] == str(first)


def test_trials_are_excluded_and_enqueued_by_commands(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny(3, (1,), scheduler="none")
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        assert Worker(store, "s").run()
    assert main(["exclude", "s", "1", "--why", "a bug", "--storage", sqlite_url]) == 0
    assert "study s: exclude" in capsys.readouterr().out
    words = ["enqueue", "s", "--set", "optimizer.lr=0.01", "--json", "--storage", sqlite_url]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["data"]["hyperparameters"]["optimizer.lr"] == 0.01
    assert main([*words[:3], "clip_value=none at all", "--storage", sqlite_url]) == 2
    assert "clip_value must be" in capsys.readouterr().err


def test_trials_of_grids_and_populations_are_not_chosen_by_hand(store: Store) -> None:
    start_study(store, "grid", surrogate(2, sampler="grid"))
    with pytest.raises(
        CommandRefused, match="a grid tries its own points only, and 'grid' is one; use `rekindle train`"
    ):
        Steering(store, "grid").enqueue({})
    start_study(store, "bred", make_population(load("surrogate"), None, epochs=4))
    for command in (lambda: Steering(store, "bred").exclude(0), lambda: Steering(store, "bred").enqueue({})):
        with pytest.raises(
            CommandRefused, match=r"the trials of 'bred' depend on each other \(pbt\), so (exclude|enqueue)"
        ):
            command()


def test_enqueued_hyperparameters_are_the_next_trials(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(4))
        study = Study("s", store)
        name = study.config.open[0]
        study.run(progress=False)
        values = study.trials[2].hyperparameters
        study.enqueue({name: values[name]}, "as in the paper")
        assert not study.complete  # the study got one trial more
        study.run(progress=False)
        assert study.trials[4].hyperparameters[name] == values[name]
        row = store.trials("s")[4]
        assert (row.attrs["enqueued"], row.attrs["commands"]) == (0, 1)
        with pytest.raises(BadConfig, match="a known configuration must be in the searched space, but lr must be"):
            study.enqueue({"lr": 1e9})
        with pytest.raises(BadConfig, match="hyperparameters of surrogate, but got lrr; did you mean lr"):
            study.enqueue({"lrr": 1e-3})
        study.extend(7)
        study.run(progress=False)
        assert len(study.trials) == 7
        with pytest.raises(CommandRefused, match="'s' has 7 trials already; give extend more than that, not 7"):
            study.extend(7)
        assert [command.kind for command in study.commands] == ["enqueue", "extend"]
        assert_follows_from_rows(store)


@pytest.mark.slow
def test_status_tells_a_study_that_nobody_works_on(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate())
        state = lambda: status_view(store).to_json()["studies"][0]["state"]  # noqa: E731
        assert state() == "stalled"
        ready = StudyRunner(store, "s").advance()
        [(lease, _)] = store.claim("s", [ready[0].trial.uid])
        assert state() == "running"
        lease.release()
        Study("s", store).pause()
        assert state() == "paused"
        Study("s", store).resume()
        Study("s", store).run(progress=False)
        assert state() == "complete"


def test_commands_of_the_command_line(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(4))
    end = ["--storage", sqlite_url]
    assert main(["stop", "s", "--why", "a test", "--json", *end]) == 0
    given = json.loads(capsys.readouterr().out)
    assert (given["study"], given["number"], given["kind"], given["why"]) == ("s", 0, "stop", "a test")
    assert main(["worker", "--study", "s", *end]) == 0
    assert "study s had the stop by" in capsys.readouterr().err
    assert main(["trials", "s", "--json", *end]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["state"], result["commands"]) == ("stopped", [{k: given[k] for k in result["commands"][0]}])
    for words, law in (
        (["stop", "s"], "study 's' is held already, by the stop by"),
        (["pause", "s"], "study 's' is held already, by the stop by"),
        (["resume", "t"], "there is no study 't'; there are 's'"),
        (["cancel", "s", "77"], "there is no trial 77 of study 's'; `rekindle trials s --storage"),
        (["enqueue", "s", "--set", "gamma"], "--set must be written NAME=VALUE, such as gamma=0.98, but got 'gamma'"),
        (["extend", "s", "--trials", "3"], "'s' has 4 trials already; give extend more than that, not 3"),
    ):
        assert main([*words, *end]) == 2
        assert law in capsys.readouterr().err
    capsys.readouterr()
    assert main(["enqueue", "s", "--set", "gamma=.98", "--json", *end]) == 0  # read as by `tune`, though it is no JSON
    assert json.loads(capsys.readouterr().out)["data"]["hyperparameters"]["gamma"] == 0.98
    assert main(["resume", "s", *end]) == 0
    assert main(["worker", "--study", "s", "--quiet", *end]) == 0
    assert main(["resume", "s", *end]) == 2
    assert "only a stopped or paused study can be resumed, but 's' is neither" in capsys.readouterr().err


@pytest.mark.slow
def test_random_commands_against_workers_that_are_killed(sqlite_url: str, tmp_path: Path) -> None:
    """Rows stay consistent, and every suggestion follows from them."""
    choice = random.Random(7)
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(40, epochs=(3, 81, 3), generation=8))
        study, crew = Study("s", store), [WorkerProcess(sqlite_url, "s", 4) for _ in range(4)]
        for _ in range(50):
            known = len(store.trials("s")) or 1
            kinds = ("stop", "pause", "resume", "cancel", "exclude", "enqueue", "extend", "longer", "other")
            name = choice.choice(kinds)
            try:
                if name in ("cancel", "exclude"):
                    getattr(study, name)(choice.randrange(known))
                elif name == "enqueue":
                    study.enqueue({})
                elif name == "extend":
                    study.extend(study.config.trials[-1] + 1)
                elif name == "longer":
                    study.extend(epochs=study.config.rungs[-1] + 5)
                elif name == "other":
                    study.extend(priors={"lr": f"loguniform(1e-5, {choice.uniform(1e-4, 1e-1)})"})
                else:
                    getattr(study, name)()
            except CommandRefused:
                pass
            victim = choice.randrange(4)
            if choice.random() < 0.3:
                crew[victim].kill()
            if crew[victim].status is not None:
                crew[victim].wait(60)
                crew[victim] = WorkerProcess(sqlite_url, "s", 4)
        for worker in crew:
            worker.stop()
            worker.wait(60)
        if study.commands and study_view(store, "s").state in ("stopped", "paused"):
            study.resume()
        study.run(progress=False)
        # One that was killed after its result, and before it let go, leaves a lease, which expires.
        assert {finding.kind for finding in check(store)} <= {"lease"}
        assert_follows_from_rows(store)


def test_a_trial_is_named_by_its_task_and_status_tells_why_a_study_stands(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(sqlite_url) as store:
        for name, seed in (("s", 0), ("t", 1)):
            start_study(store, name, surrogate(4, scheduler="none", sampler="random", seed=seed))
            assert StudyRunner(store, name).advance()
        mine, other = store.trials("s")[2], store.trials("t")[0]
        for trial in (mine, other):
            store.open(trial.uid, None).release()
        steering = Steering(store, "s")
        steering.cancel(mine.uid[:12], "too slow")
        assert [trial.number for trial in store.trials("s") if trial.state == "cancelled"] == [2]
        with pytest.raises(CommandRefused, match=f"study 's' has no trial of task {other.uid}"):
            steering.cancel(other.uid)
        Study("s", store).cancel(0, "too slow as well")
        assert [trial.number for trial in store.trials("s") if trial.state == "cancelled"] == [0, 2]
        steering.stop("seen enough")
    assert main(["status", "--storage", sqlite_url]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "study s had the stop by " in said
    assert ": seen enough" in said
    assert "study t had" not in said
