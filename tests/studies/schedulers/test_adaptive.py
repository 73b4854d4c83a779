"""The adaptive scheduler: cost of a bracket, response to its rungs, and results on known curves."""

from __future__ import annotations

import itertools
import json
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rekindle import tune
from rekindle.studies.analysis.cures import less_misled
from rekindle.studies.cli import main
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.sizing import Sized
from rekindle.studies.engine.study_views import study_view
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig, StudyMismatch
from rekindle.studies.samplers.registry import make_sampler
from rekindle.studies.schedulers.adaptive import EXPECTED, SAVING, promotions, wanted
from rekindle.studies.schedulers.registry import plan, scheduler
from rekindle.studies.statistics.rank_correlation import Agreement
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import SIZED, Config, parse_epochs
from rekindle.tasks.algorithms.surrogate import Surrogate
from simulating import Told
from studying import run, run_by_three, tiny

RUNGS = (1, 2, 4, 8, 16, 20)


def config(trials: tuple[int, ...] = (12,), epochs: tuple[int, ...] = (1, 20, 2), sampler: str = "random") -> Config:
    return Config(
        "ppo", 1, {}, 0, {}, {}, list(epochs), list(trials), 12, sampler=sampler, scheduler="adaptive", options={}
    )


def path(trials: int, finishers: int, rungs: tuple[int, ...] = RUNGS) -> list[int]:
    """How many trials are on each rung if as many ought to reach the end from the beginning on."""
    done = [trials]
    while len(done) < len(rungs):
        done.append(promotions(rungs, tuple(done), finishers))
    return done


def cost(done: list[int], rungs: tuple[int, ...] = RUNGS) -> int:
    return sum(n * (high - low) for n, low, high in zip(done, (0, *rungs), rungs, strict=False))


def test_a_bracket_never_costs_more_than_a_third_of_its_trials_trained_to_the_end() -> None:
    for trials, finishers in itertools.product(range(6, 50, 3), (1, 2, 4, 16)):
        done = path(trials, finishers)
        assert done == sorted(done, reverse=True)
        assert done[-1] >= 1
        assert cost(done) <= trials * RUNGS[-1] / SAVING
    assert path(12, 2) == [12, 8, 6, 4, 3, 2]
    assert path(12, 4) == [12, 8, 5, 3, 3, 3]  # the cost does not allow four


def test_a_first_rung_that_costs_too_much_leaves_one_trial_to_go_on() -> None:
    assert path(12, 2, (10, 20)) == [12, 1]
    assert path(1, 1) == [1] * 6


def test_the_less_rungs_agree_the_more_trials_reach_the_end() -> None:
    numbers = [wanted(12, Agreement.of(range(30), order)) for order in (range(30), shuffled(30), range(30, 0, -1))]
    assert numbers == [2, 4, 4]  # of which random search of the same cost trains four
    assert wanted(12, EXPECTED) == 2


def shuffled(n: int) -> list[int]:
    order = list(range(n))
    random.Random(1).shuffle(order)
    return order


def simulate(study: Config, score: dict[tuple[int, int], float]) -> dict[int, int]:
    """The number of trials on each rung, of a study whose scores are known by trial and rung."""
    trials: dict[int, Trial] = {}
    segments: dict[tuple[int, int], Segment] = {}
    record = Told(study)
    while not (step := record.plan(trials, segments)).complete:
        for n, state in step.finished:
            trials[n] = Trial(n, f"u{n}", {}, state=state)
        trials |= {n: Trial(n, f"u{n}", {}) for n in step.ask or ()}
        first = [Segment(n, 0, study.rungs[0]) for n in step.ask or ()]
        for row in (*step.segments, *first):
            value = score[row.number, row.rung]
            segments[row.number, row.rung] = Segment(row.number, row.rung, row.epochs, "done", value)
    return {rung: sum(key[1] == rung for key in segments) for rung in range(len(study.rungs))}


def test_rungs_that_agree_send_few_to_the_end_and_rungs_that_do_not_send_more() -> None:
    study, rng = config((48,)), random.Random(2)
    steady = {(n, rung): float(n * 7 % 48) for n in range(48) for rung in range(6)}
    erratic = {(n, rung): rng.random() for n in range(48) for rung in range(6)}
    assert simulate(study, steady)[5] < simulate(study, erratic)[5]
    assert simulate(study, steady)[0] == 48


def test_brackets_are_of_about_equal_size_and_begin_when_those_before_have_ended() -> None:
    made = scheduler(config((30, 34))).brackets  # type: ignore[attr-defined]
    assert [bracket.numbers for bracket in made] == [range(0, 10), range(10, 20), range(20, 30), range(30, 34)]
    trials = [Trial(n, f"u{n}", {}, state="pruned") for n in range(10)]
    rows = [Segment(n, 0, 1, "done", float(n)) for n in range(10)]
    assert plan(config((30,)), [Trial(n, f"u{n}", {}) for n in range(10)], rows).ask is None
    ended = [*rows, *(Segment(9, rung, RUNGS[rung], "done", 9.0) for rung in range(1, 6))]
    trials[9] = Trial(9, "u9", {}, state="complete")
    step = plan(config((30,), sampler="tpe"), trials, ended)
    assert (step.ask, step.seen[9]) == (range(10, 20), [(epochs, 9.0) for epochs in RUNGS])


def test_its_rungs_double_unless_the_base_is_given() -> None:
    assert parse_epochs("1:20", "adaptive") == [1, 20, 2]
    assert parse_epochs("1:27:3", "adaptive") == [1, 27, 3]


def test_three_workers_train_the_study_that_one_trains(sqlite_url: str, tmp_path: object) -> None:
    study = tiny(trials=6, scheduler="adaptive", generation=6)
    assert run_by_three(sqlite_url, study) == run(f"sqlite:///{tmp_path}/alone.db", study)


@pytest.mark.slow
def test_a_study_keeps_its_scheduler_unless_another_is_named(sqlite_url: str) -> None:
    def trained(trials: int, **options: str) -> Config:
        return tune("surrogate", None, storage=sqlite_url, study="s", epochs="1:3", trials=trials, **options).config

    assert (trained(2, scheduler="halving").scheduler, trained(3).trials) == ("halving", [2, 3])
    with pytest.raises(StudyMismatch, match=r"differs in .*scheduler \('halving', now 'adaptive'\)"):
        trained(4, scheduler="adaptive")


def test_tpe_takes_few_of_its_trials_as_good_and_older_studies_go_on_as_they_were(sqlite_url: str) -> None:
    def made(**options: str) -> Config:
        return study_config(Surrogate, None, trials=4, epochs=[1, 3], **options)

    new, before = made(), replace(made(), options={})
    assert [made(scheduler="halving").options, made(sampler="random").options] == [{}, {}]
    assert make_sampler(new, 30)._gamma(48) == 2  # type: ignore[attr-defined]
    assert make_sampler(before, 30)._gamma is None  # type: ignore[attr-defined]
    with Store(sqlite_url) as store:
        for name, first, then in (("before", before, new), ("new", new, before)):
            assert start_study(store, name, first).options == start_study(store, name, then).options == first.options


@pytest.mark.parametrize("misleads", [False, True])
def test_the_table_warns_of_a_rung_that_says_nothing_of_the_next(
    misleads: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quality = np.arange(18.0)
    curves = np.stack([-quality if misleads else quality, *[quality] * 11], 1)[:, None]
    np.savez(tmp_path / "table.npz", **{"param.x": quality, "steps": np.arange(1, 13), "curves": curves})
    command = f"tune tabular {tmp_path}/table.npz --epochs 1:12 --trials 18 --generation 18 --sampler bruteforce"
    command += f" --study s --storage sqlite:///{tmp_path}/s.db --workers 1"
    assert main(command.split()) == 0
    output = " ".join(capsys.readouterr().out.split())
    warning = "results after 1 epoch say little about those after 2: their rank correlation is -1.00"
    assert [text in output for text in (warning, "in a new study, compare later (--epochs 2:12)")] == [misleads] * 2
    assert main([*command.split(), "--json"]) == 0
    study = json.loads(capsys.readouterr().out)
    assert study["scheduler"] == "adaptive"
    assert [rung["misleads"] for rung in study["agreement"]][:1] == [misleads]
    assert study["agreement"][0]["trials"] == study["progress"][1]["done"]


@pytest.mark.parametrize("pruned", [0, 1])
def test_a_rung_after_which_all_trials_went_on_has_misled_nobody(pruned: int, sqlite_url: str) -> None:
    count = 6
    segments = [
        Segment(number, rung, epochs, "done", -score if rung == 0 else score, "d")
        for number, score in enumerate(np.arange(float(count)))
        for rung, epochs in enumerate((1, 3, 9))
        if rung == 0 or number >= pruned
    ]
    with Store(sqlite_url) as store:
        start_study(store, "s", tiny(count, (1, 9, 3)))
        trials = [Trial(number, f"u{number}", {}, {"bracket": 0}) for number in range(count)]
        store.add_rows("s", trials=trials, segments=segments)
        first, second = study_view(store, "s").agreement
    assert (first.correlation, first.misleads) == (pytest.approx(-1.0, abs=0.02), pruned > 0)
    assert (second.correlation, second.misleads) == (pytest.approx(1.0, abs=0.02), False)


@pytest.mark.parametrize(("rungs", "cure"), [("1:12", "compare later (--epochs 2:12), or prune"), ("1:2", "prune")])
def test_the_table_warns_of_a_rung_on_which_all_trials_are_equal(
    rungs: str, cure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quality = np.arange(18.0)
    curves = np.stack([-21 + 0 * quality, *[quality] * 11], 1)[:, None]
    np.savez(tmp_path / "table.npz", **{"param.x": quality, "steps": np.arange(1, 13), "curves": curves})
    command = f"tune tabular {tmp_path}/table.npz --epochs {rungs} --trials 18 --generation 18 --sampler bruteforce"
    command += f" --study s --storage sqlite:///{tmp_path}/s.db --workers 1"
    assert main(command.split()) == 0
    output = " ".join(capsys.readouterr().out.split())
    warning = "all 18 trials have the same result after 1 epoch, but later ones differ, so chance decided which were"
    assert f"{warning} pruned there; in a new study, {cure} no trial (--scheduler none)" in output


def test_a_misled_study_by_time_is_told_to_take_more_of_it() -> None:
    sized = {SIZED: Sized(90.0, {"ppo": 1e-4}).to_json()}
    study = replace(config((8,)), options=sized)
    assert less_misled(study, 1, 2) == "in a new study, compare after more steps (--budget 4.5m)"


def test_races_need_a_rung_whose_promotions_do_not_depend_on_it() -> None:
    with pytest.raises(BadConfig, match=r"--racing needs .* but it is adaptive"):
        tiny(trials=6, scheduler="adaptive", options={"seeds": 4, "aggregate": "mean", "racing": True})


@pytest.mark.slow
def test_a_decision_in_a_study_of_10_000_trials_reads_few_of_them_again() -> None:
    study, rng = config((10_000,), sampler="tpe"), random.Random(3)
    plans = scheduler(study)
    before = range(plans.brackets[-1].numbers.start)  # type: ignore[attr-defined]
    rows = (Segment(n, rung, RUNGS[rung], "done", rng.random()) for n in before for rung in range(6 if n % 6 else 1))
    plans.observe((Trial(n, f"u{n}", {}, state="pruned") for n in before), rows)
    began = time.process_time()
    plans.plan()  # what happened until now is read once
    read, took = time.process_time() - began, []
    for _ in range(100):
        began = time.process_time()
        step = plans.plan()
        took.append(time.process_time() - began)
        if step.complete:
            break
        new = [Trial(n, f"u{n}", {}) for n in step.ask or ()]
        ended = [Trial(n, f"u{n}", {}, state=state) for n, state in step.finished]
        ready = [*step.segments, *(Segment(trial.number, 0, 1) for trial in new)]
        plans.observe([*new, *ended], [Segment(r.number, r.rung, r.epochs, "done", rng.random()) for r in ready])
    assert step.complete
    assert len(took) > 6
    assert max(took) < read / 30, (read, took)  # 3 of 600 ms on one machine
