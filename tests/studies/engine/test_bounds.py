"""Bounds of studies and trials: counted from rows, enforced, lifted, and reported."""

from __future__ import annotations

import io
import math
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import slow_envs
from rekindle.studies import Study
from rekindle.studies.cli import main
from rekindle.studies.cli.output.live_progress import Progress
from rekindle.studies.cli.parsers import make_parser
from rekindle.studies.engine import bounds
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.study_rows import StudyRows
from rekindle.studies.engine.study_views import study_json
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig, CommandRefused
from rekindle.studies.failures import FAILED
from rekindle.studies.options.durations import in_words, parse_duration
from rekindle.studies.options.entries import parse_budget
from rekindle.studies.schedulers.seeds import seed_options
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage import commands
from rekindle.studies.storage.rows import Segment, Trial, score_of
from rekindle.studies.storage.store import Store
from rekindle.studies.workers import training
from rekindle.studies.workers.supervisor import Supervisor, WorkerProcess
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from rich.console import Console
from studying import bits, surrogate, tiny, undisturbed

EPOCH = 0.1  # seconds
TICK = 0.01  # seconds that the stamps of files, which are the clock of SQLite, may lag behind, at either end of a time


def slow(trials: int, **options: Any) -> Any:
    """Trainings whose epochs take their time."""
    return surrogate(trials, scheduler="none", fixed={"seconds": EPOCH}, **options)


@pytest.mark.parametrize(("budget", "most"), [("20epochs", 20), ("192steps", 1)])
def test_a_budget_stops_a_study_and_more_of_it_carries_on(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, budget: str, most: int
) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY", 0.0)
    make = surrogate if "epochs" in budget else partial(tiny, 4, (1, 2, 2))
    expected = undisturbed(make())
    unit = "".join(letter for letter in budget if letter.isalpha())
    with Store(sqlite_url) as store:
        start_study(store, "s", make(options={"budget": parse_budget(budget)}))
        assert not Worker(store, "s").run()
        spent = sum(task.epochs for task in store.tasks())
        assert most <= spent <= most + 4  # within an epoch of each member of the cohort
        [stop] = store.commands("s")
        assert (stop.kind, stop.who, stop.data["budget"]) == ("stop", "budget", parse_budget(budget))
        assert not Worker(store, "s").run()
        start_study(store, "s", make(options={"budget": parse_budget(f"9e9{unit}")}))
        assert Worker(store, "s").run()
        assert bits(store) == expected
        assert [command.kind for command in store.commands("s")] == ["stop", "resume"]


def test_trainings_at_the_end_of_the_budget_get_results(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All four members of a cohort end their first epoch at once, beyond the budget."""
    monkeypatch.setattr(training, "LOOK_EVERY", 0.0)
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(4, (1, 2, 2), cohort=4, options={"budget": parse_budget("2epochs")}))
        assert not Worker(store, "s").run()
        assert [row.state for row in store.segments("s")] == ["done"] * 4
        assert [command.kind for command in store.commands("s")] == ["stop"]


def test_trainings_that_spent_the_budget_get_results_even_if_their_process_died(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY", 0.0)
    config = tiny(4, (1, 2, 2), cohort=4, options={"budget": parse_budget("2epochs")})
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        for method in ("measure", "results_of"):  # before the last epoch is saved, and after
            with monkeypatch.context() as patch:

                def die(training: training.Training, *arguments: object) -> None:
                    raise KeyboardInterrupt

                patch.setattr(training.Training, method, die)
                with pytest.raises(KeyboardInterrupt):
                    Worker(store, "s").run()
            assert {row.state for row in store.segments("s")} == {"ready"}
        assert not Worker(store, "s").run()
        assert [row.state for row in store.segments("s")] == ["done"] * 4
        assert [command.kind for command in store.commands("s")] == ["stop"]


def test_a_budget_or_trial_time_that_was_raised_meanwhile_stops_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY", 0.0)
    config = surrogate(4, options={"budget": parse_budget("2epochs"), "trial_time": 1e-9})
    obey, given = training.Training.obey, list[str]()

    def raise_first(self: training.Training, event: Any) -> None:
        if not given:
            given.append("more")
            start_study(store, "s", surrogate(4, options={"budget": parse_budget("999epochs"), "trial_time": 1e9}))
        obey(self, event)

    monkeypatch.setattr(training.Training, "obey", raise_first)
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        assert Worker(store, "s").run()
        assert store.commands("s") == []
        assert bits(store) == undisturbed(surrogate(4))


def test_several_that_lift_a_bound_at_once_resume_the_study_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, read = surrogate(4), Store.commands
    with Store(sqlite_url) as store:
        start_study(store, "s", replace(config, options={**config.options, "budget": parse_budget("1epochs")}))
        assert not Worker(store, "s").run()
        together, failed = threading.Barrier(2), list[BaseException]()

        def both_before_either(store: Store, name: str) -> Any:
            given = read(store, name)
            together.wait(60)
            return given

        def lift() -> None:
            try:
                with Store(sqlite_url) as mine:
                    start_study(mine, "s", config)
            except BaseException as error:
                failed.append(error)
                raise

        with monkeypatch.context() as patch:
            patch.setattr(Store, "commands", both_before_either)
            threads = [threading.Thread(target=lift) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not failed
        assert [(command.kind, command.who) for command in store.commands("s")] == [
            ("stop", "budget"),
            ("resume", "budget"),
        ]


def test_a_resumption_lifts_no_bound_that_is_reached_meanwhile(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, hold = parse_budget("1epochs"), commands.hold
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(4, options={"budget": budget}))
        steering = Steering(store, "s")
        steering.pause()

        def spent_before(connection: Any, name: str, *arguments: Any) -> Any:
            hold(connection, name, "stop", "budget", "", {"budget": budget})
            return hold(connection, name, *arguments)

        monkeypatch.setattr(commands, "hold", spent_before)
        with pytest.raises(CommandRefused, match="study 's' cannot be resumed while its bound is reached: it had the "):
            steering.resume()


def test_a_bound_that_is_changed_just_before_it_is_reached_stops_nothing(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(4, options={"budget": parse_budget("9epochs")}))
        data = {"budget": parse_budget("9epochs")}
        Steering(store, "s").extend(budget="10epochs")
        with pytest.raises(CommandRefused, match="a study stops at its budget, but 's' has another one by now"):
            store.command(lambda c: bounds.stop_at(c, "s", "budget", "", data))
        assert [command.kind for command in store.commands("s")] == ["bound"]


@pytest.mark.slow
def test_a_supervisor_lets_a_worker_evaluate_what_spent_the_budget(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(slow_envs.VARIABLE, str(tmp_path))
    config = tiny(1, (1, 2, 2), env="slow_envs:Slow-v0", options={"budget": parse_budget("1epochs")})
    with Store(sqlite_url) as store:
        start_study(store, "s", config)
        with Progress(Console(file=io.StringIO()), "s", "here") as progress:
            supervisor = Supervisor(store, "s", 1, lambda: WorkerProcess(sqlite_url, "s", 1), progress)
            supervisor.run()
        assert [worker.status for worker in supervisor.workers] == [0]
        assert [row.state for row in store.segments("s")][:1] == ["done"]


@pytest.mark.parametrize("text", ["0epochs", "0h", "1e2h", "5", "epochs", "1.5steps", "1e99steps", "-3epochs"])
def test_a_budget_is_work_in_known_units(text: str) -> None:
    with pytest.raises(BadConfig, match=f"--budget must be a number of at least 1 with a unit, .* but got '{text}'"):
        parse_budget(text)


def test_a_budget_of_steps_is_for_tasks_that_count_them() -> None:
    with pytest.raises(BadConfig, match="--budget counts steps of an epoch, but digits names none; write 200epochs"):
        study_config(load("digits"), None, epochs=(1, 3, 3), budget="100steps")


@pytest.mark.slow
def test_a_trial_that_trains_for_too_long_fails_though_a_worker_was_killed(
    url: str, wait_until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY", 0.0)
    with Store(url, lease_seconds=0.8) as store:
        start_study(store, "s", slow(2, cohort=2, epochs=(99,), options={"trial_time": 1.0}))
        first = WorkerProcess(url, "s", 1, ["--lease", "0.8"])
        took = lambda: store.trained_for([trial.uid for trial in store.trials("s")])  # noqa: E731
        wait_until(lambda: sum(took().values()) >= 1.4)  # 0.7 of each: they share the time
        first.kill()
        first.wait(60)
        assert first.status == -signal.SIGKILL
        epochs = count_epochs(monkeypatch)
        assert Worker(store, "s").run()
        assert len(epochs) <= 14  # of 0.05 for each; if they had begun to count again, 20
        assert all(seconds >= 1.0 for seconds in took().values())
        for trial in store.trials("s"):
            assert trial.state == "failed"
            assert re.match(
                r"OutOfTime: it trained for 1.*s until epoch \d+, but a trial of this study has 1s \(--trial-time\); "
                "give the study more, or leave what is slow out of its space",
                trial.error or "",
            )
            [failure] = [event.data for event in store.events(trial.uid) if event.kind == FAILED]
            assert (failure["kind"], failure["retry"]) == ("time", False)


def count_epochs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The members of each epoch that is trained in this process from now on."""
    learner, epochs = load("surrogate").learner, list[int]()
    run_epoch = learner.run_epoch
    monkeypatch.setattr(learner, "run_epoch", lambda self, *_, **__: epochs.append(self.members) or run_epoch(self))
    return epochs


def test_time_is_counted_while_workers_train_alone(sqlite_url: str) -> None:
    with Store(sqlite_url, lease_seconds=0.4) as store:
        start_study(store, "s", slow(2, epochs=(3,)))
        began = time.time()
        assert Worker(store, "s").run()
        passed = time.time() - began
        counted = store.trained_for([trial.uid for trial in store.trials("s")])
        assert all(seconds >= 2.5 * EPOCH for seconds in counted.values())
        assert sum(counted.values()) <= passed + TICK * 2 * len(counted)
        task = store.task(store.trials("s")[0].uid)  # in a notebook, say
        time.sleep(0.3)
        task.release()
        assert store.trained_for([*counted]) == counted


def test_a_budget_of_time_stops_a_study_and_more_carries_on(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY", 0.0)
    expected = undisturbed(slow(3, epochs=(8,)))
    with Store(sqlite_url, lease_seconds=0.4) as store:
        start_study(store, "s", slow(3, epochs=(8,), options={"budget": {"seconds": 1}}))
        assert not Worker(store, "s").run()
        spent = sum(store.trained_for([task.uid for task in store.tasks()]).values())
        assert spent >= 1.0
        assert not Study("s", store).complete
        [stop] = store.commands("s")
        assert (stop.who, stop.data["budget"]) == ("budget", {"seconds": 1})
        start_study(store, "s", slow(3, epochs=(8,), options={"budget": {"seconds": 7200}}))
        assert Worker(store, "s").run()
        assert bits(store) == expected


def test_durations_are_written_with_units() -> None:
    assert [parse_duration(text) for text in ("90s", "10m", "2h", "1.5d", "3")] == [90, 600, 7200, 129600, 3]
    assert [in_words(seconds) for seconds in (0.25, 90, 7200, 129600)] == ["0.25s", "1.5m", "2h", "1.5d"]
    assert parse_budget("90m") == {"seconds": 5400}


@pytest.mark.parametrize("trial_time", ["soon", -1, 0.0, float("nan"), "2 h"])
def test_a_trial_time_is_a_duration(trial_time: Any) -> None:
    with pytest.raises(BadConfig, match="--trial-time must be a duration, such as 90s, 10m, 2h or 1d, but got"):
        study_config(load("surrogate"), "CartPole-v1", epochs=3, trial_time=trial_time)


def test_the_command_line_takes_a_trial_time(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["create", "surrogate", "CartPole-v1", "--epochs", "3", "--study", "s", "--storage", sqlite_url]
    assert main([*words, "--trial-time", "30m", "--budget", "2h"]) == 0
    with Store(sqlite_url) as store:
        options = store.study("s").config["options"]
        assert (options["trial_time"], options["budget"]) == (1800, {"seconds": 7200})
    with pytest.raises(SystemExit):
        main([*words, "--trial-time", "long"])
    assert "--trial-time: must be a duration, such as 90s, 10m, 2h or 1d, or off, but got" in capsys.readouterr().err


def test_a_bound_is_lifted_by_extending_the_study(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY", 0.0)
    expected = undisturbed(surrogate())
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(options={"budget": {"epochs": 5}}))
        study = Study("s", store)
        assert not Worker(store, "s").run()
        law = (
            "study 's' cannot be resumed while its bound is reached: it had the stop by budget: 5 of 5 epochs are "
            "trained; `rekindle extend s --budget MORE` (or off) continues it"
        )
        with pytest.raises(CommandRefused, match=re.escape(law)):
            study.resume()
        study.extend(budget="11epochs", why="a little more")
        assert not Worker(store, "s").run()
        study.extend(budget="off")
        assert Worker(store, "s").run()
        assert bits(store) == expected
        kinds = [command.kind for command in study.commands]
        assert kinds == ["stop", "bound", "resume", "stop", "bound", "resume"]
        assert [command.data for command in study.commands][1::3] == [{"budget": {"epochs": 11}}, {"budget": None}]
        for given, error in (
            ({}, "extend needs something to change, such as --trials or --budget"),
            ({"budget": "5"}, "--budget must be a number of at least 1 with a unit"),
            ({"goal": "475"}, "--goal must be return:VALUE, such as return:475, but got '475'"),
            ({"goal": "return:nan"}, "--goal must be return:VALUE"),
            ({"plateau": "few"}, "plateau must be an integer of at least 1, but got 'few'"),
        ):
            with pytest.raises((CommandRefused, BadConfig), match=error):
                study.extend(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_plateau_stops_a_study_whose_best_trial_is_long_ago(sqlite_url: str, seeds: int) -> None:
    make = partial(surrogate, 24, scheduler="none", epochs=(3,), sampler="random")
    of_seeds = seed_options(seeds, "mean")
    expected = undisturbed(make(options={"plateau": 99, **of_seeds}))
    with Store(sqlite_url) as store:
        start_study(store, "s", make(options={"plateau": 8, **of_seeds}))
        assert not Worker(store, "s").run()
        [stop] = store.commands("s")
        trials = study_json(store, "s")["trials"]
        best = max((trial for trial in trials if trial["epochs"]), key=lambda trial: trial["return"])["number"]
        assert (stop.who, stop.data) == ("plateau", {"plateau": 8, "best": best, "trials": stop.data["trials"]})
        assert best + stop.data["trials"] in range(best + 8, best + 8 + 4)  # brackets of four
        assert stop.why.endswith(f"trials was better than trial {best} beyond the noise of evaluation")
        start_study(store, "s", make(options={"plateau": 99, **of_seeds}))
        assert Worker(store, "s").run()
        assert bits(store) == expected


def test_a_plateau_does_not_count_an_excluded_trial(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(12, scheduler="none", epochs=(3,), options={"plateau": 4}))
        trials = [Trial(n, f"u{n}", {}, {"bracket": 0}, state="complete") for n in range(5)]
        results = [Segment(n, 0, 3, "done", -float(n), f"d{n}") for n in range(5)]  # none is better than the first
        store.add_rows("s", trials=trials, segments=results)
        Steering(store, "s").exclude(2, "a fault of the simulator")
        assert not bounds.stop_if_plateau(store, StudyRows(store, "s"))
        store.add_rows("s", trials=[replace(trials[0], number=5, uid="u5")], segments=[replace(results[4], number=5)])
        assert bounds.stop_if_plateau(store, StudyRows(store, "s"))


def test_a_plateau_counts_no_lucky_loser_of_a_race_as_the_best(sqlite_url: str) -> None:
    options = {"plateau": 4, **seed_options(3, "mean", racing=True)}
    scores = [[100.0] * 2, [50.0] * 3, *[[0.0] * 2] * 4]  # by configuration and seed; losers train with two seeds
    seeds = [(3 * n + k, n, score) for n, of_n in enumerate(scores) for k, score in enumerate(of_n)]
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate(12, scheduler="halving", epochs=(3,), options=options))
        states = ["complete" if n // 3 == 1 else "pruned" for n in range(18)]
        trials = [Trial(n, f"u{n}", {}, {"bracket": 0}, state=state, seeds=3) for n, state in enumerate(states)]
        results = [Segment(k, 0, 3, "done", score, f"d{k}", seeds=3) for k, _, score in seeds]
        store.add_rows("s", trials=trials[:15], segments=[row for row in results if row.number < 15])
        assert not bounds.stop_if_plateau(store, StudyRows(store, "s"))  # three after the winner
        store.add_rows("s", trials=trials[15:], segments=[row for row in results if row.number >= 15])
        assert bounds.stop_if_plateau(store, StudyRows(store, "s"))
        [stop] = store.commands("s")
        assert stop.data == {"plateau": 4, "best": 1, "trials": 4}


def test_a_better_trial_within_the_noise_is_not_better(sqlite_url: str) -> None:
    """By how far a score must be better follows from the standard errors of both."""
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(4, (1, 1, 2), scheduler="none", options={"plateau": 100}))
        assert Worker(store, "s").run()
        rows = StudyRows(store, "s")
        first, second = (rows.segments[number, 0] for number in (0, 1))
        errors = [rows.segments[number, 0].eval_error or 0.0 for number in (0, 1)]
        assert all(0.1 < error < 10 for error in errors)  # of twenty episodes of some 20 steps
        noise = bounds.Z * math.hypot(*errors)
        for gain, better in ((0.9, False), (1.1, True), (-1.0, False)):
            row = replace(second, score=score_of(first) + gain * noise)
            assert bounds.is_better(store, rows, row, first) is better
        assert bounds.is_better(store, rows, replace(second, epochs=2, score=0.0), first)


def test_the_noise_of_several_seeds_is_their_standard_error(sqlite_url: str) -> None:
    rows: Any = SimpleNamespace(config=surrogate(options=seed_options(3, "mean")))
    rows.done_seeds = partial(StudyRows.done_seeds, rows)
    scores = {3: 1.0, 4: 4.0, 5: 7.0}  # of configuration 1
    done = {(n, 0): Segment(n, rung=0, epochs=1, state="done", score=score) for n, score in scores.items()}
    rows.segments = {**done, (0, 0): Segment(0, rung=0, epochs=1, state="done", score=99.0)}
    configuration = Segment(1, rung=0, epochs=1, state="done", score=4.0)
    with Store(sqlite_url) as store:
        assert bounds.noise_of(store, rows, configuration) == pytest.approx(3 / math.sqrt(3))
        rows.segments[5, 0] = Segment(5, rung=0, epochs=1, state="failed")
        assert bounds.noise_of(store, rows, configuration) == pytest.approx(math.sqrt(4.5) / math.sqrt(2))


def test_goals_and_plateaus_are_of_one_return() -> None:
    for options, error in (
        ({"goal": "return:1"}, "a goal is a return, which fresh episodes confirm, but the objective is model_size"),
        ({"plateau": 0}, "plateau must be an integer of at least 1, but got 0"),
    ):
        with pytest.raises(BadConfig, match=error):
            study_config(load("ppo"), "CartPole-v1", epochs=3, objective=["model_size"], **options)
    for options, error in (
        ({"scheduler": "pbt"}, "the members of a population depend on each other; leave --plateau out"),
        (
            {"objective": ["return", "model_size"], "scheduler": "none"},
            "a Pareto front has no best; leave --plateau out",
        ),
    ):
        with pytest.raises(BadConfig, match=error):
            study_config(load("ppo"), "CartPole-v1", epochs=3, plateau=5, **options)  # type: ignore[arg-type]


def test_a_goal_needs_episodes_that_can_be_played_again() -> None:
    with pytest.raises(BadConfig, match=r"a goal is a return, .* but own_functions:climb plays none"):
        study_config(load("own_functions:climb"), None, epochs=3, goal="return:1")


def test_a_plateau_is_a_number_of_trials_or_off(capsys: pytest.CaptureFixture[str]) -> None:
    parser = make_parser()
    for text, value in (("20", 20), ("off", "off")):
        assert parser.parse_args(["extend", "s", "--plateau", text]).plateau == value
    for text in ("0", "-1", "1e3", "x", "", "²"):
        with pytest.raises(SystemExit):
            parser.parse_args(["extend", "s", f"--plateau={text}"])
        assert "argument --plateau: must be a number of at least 1, but got" in capsys.readouterr().err


def test_a_trial_that_trained_for_longer_than_it_may_is_told(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", config := slow(1, epochs=(2, 2, 2)))
        assert Worker(store, "s").run()
        [trial] = store.trials("s")
        assert bounds.overdue(store, config, {trial.uid: 2}) == {}
        for seconds, late in ((2 * EPOCH - 0.01, True), (3600.0, False)):
            limited = replace(config, options={**config.options, "trial_time": seconds})
            result = bounds.overdue(store, limited, {trial.uid: 2})
            assert list(result) == [trial.uid] * late
            assert all("until epoch 2, but a trial of this study has" in str(error) for error in result.values())
