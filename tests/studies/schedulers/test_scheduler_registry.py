"""Successive halving, Hyperband and ASHA as functions of rows, simulated without training."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rekindle.studies.errors import BadConfig, StoreError
from rekindle.studies.schedulers.hyperband import brackets
from rekindle.studies.schedulers.registry import plan, scheduler
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.study.config import Config, parse_epochs
from rekindle.studies.study.plan import Plan, ScoreHistory
from simulating import Told


def config(
    trials: tuple[int, ...] = (16,),
    epochs: tuple[int, ...] = (1, 27, 3),
    generation: int = 8,
    scheduler: str = "halving",
) -> Config:
    return Config("ppo", 1, {}, 0, {}, {}, list(epochs), list(trials), generation, scheduler=scheduler)


Rows = tuple[dict[int, Trial], dict[tuple[int, int], Segment]]


def score_of(number: int, rung: int) -> float | None:
    """A score that changes its ranking from rung to rung; None fails the trial."""
    return None if (number, rung) in ((5, 0), (2, 1)) else float(hash((number * 7919 + rung * 104729) % 1009))


def simulate(
    config: Config,
    rng: random.Random,
    score: Callable[[int, int], float | None] = score_of,
    rows: Rows | None = None,
    check: Callable[[Plan, Rows], None] = lambda step, rows: None,
) -> tuple[Rows, dict[int, ScoreHistory]]:
    """Carries rows forward to the end, finishing some ready segments at a time in random order."""
    trials, segments = rows or ({}, {})
    asked: dict[int, ScoreHistory] = {}
    record = Told(config)
    while True:
        step = record.plan(trials, segments)
        check(step, (trials, segments))
        if step.complete:
            return (trials, segments), asked
        for row in step.segments:
            segments.setdefault((row.number, row.rung), row)
        for number, state in step.finished:
            assert trials[number].state == "running"
            trials[number] = replace(trials[number], state=state)
        if step.ask is not None:
            asked[step.ask[0]] = step.seen
            trials |= {number: Trial(number, f"u{number}", {}) for number in step.ask}
            first = {(n, step.rung): Segment(n, step.rung, config.rungs[step.rung]) for n in step.ask}
            segments |= first if rng.random() < 0.5 else {}  # or they were cut off, and follow in the next plan
        ready = [key for key, row in segments.items() if row.state == "ready"]
        assert ready or step.segments or step.ask or step.finished, "the schedule is stuck"
        for number, rung in rng.sample(ready, rng.randint(0, len(ready))):
            value = score(number, rung)
            state = "failed" if value is None else "done"
            segments[number, rung] = replace(segments[number, rung], state=state, score=value)
            if value is None:
                trials[number] = replace(trials[number], state="failed")


def test_rungs_rise_by_the_base_and_end_at_the_top() -> None:
    assert config(epochs=(1, 27, 3)).rungs == (1, 3, 9, 27)
    assert config(epochs=(2, 20, 3)).rungs == (2, 6, 18, 20)
    assert config(epochs=(5, 5, 3)).rungs == (5,)


def test_brackets_are_generations_and_an_extension_begins_a_new_one() -> None:
    assert config((20,)).brackets == (range(0, 8), range(8, 16), range(16, 20))
    assert config((20, 30)).brackets == (range(0, 8), range(8, 16), range(16, 20), range(20, 28), range(28, 30))


@pytest.mark.parametrize(("text", "epochs"), [("27", [27, 27, 3]), ("1:27", [1, 27, 3]), ("2:16:2", [2, 16, 2])])
def test_epochs_are_written_with_colons(text: str, epochs: list[int]) -> None:
    assert parse_epochs(text) == epochs


@pytest.mark.parametrize("text", ["", "0:3", "3:1", "1:9:1", "a", "1:2:3:4", "1.5", "-1:3"])
def test_epochs_that_make_no_rungs_are_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="epochs"):
        parse_epochs(text)


@pytest.mark.parametrize("epochs", ["3:9:27", (3, 9, 27), [3, 9, 28]])
def test_three_rungs_are_not_read_as_a_base_above_the_last_epoch(epochs: str | Sequence[int]) -> None:
    with pytest.raises(BadConfig, match=r"got 3:9:2[78]; for rungs from 3 to 2[78], each 3 times .*, write 3:2[78]:3"):
        parse_epochs(epochs)
    assert config(epochs=(*parse_epochs("3:27:3"),)).rungs == (3, 9, 27)
    assert parse_epochs((1, 2)) == [1, 2, 3]  # the default base may be above


def test_the_best_third_is_promoted_and_ties_go_to_the_lower_number() -> None:
    (trials, segments), _ = simulate(config((8,)), random.Random(0), lambda number, rung: float(number in (6, 7)))
    assert [number for number in range(8) if (number, 1) in segments] == [0, 6, 7]
    assert [number for number in range(8) if (number, 3) in segments] == [6]
    assert {number: trial.state for number, trial in trials.items() if trial.state != "pruned"} == {6: "complete"}


def test_a_failed_trial_takes_no_place_of_a_good_one() -> None:
    (trials, segments), _ = simulate(config((8,)), random.Random(0), lambda n, rung: None if n < 6 else float(n))
    assert [number for number in range(8) if (number, 1) in segments] == [6, 7]
    assert [trials[number].state for number in range(8)] == ["failed"] * 6 + ["pruned", "complete"]


def test_a_study_completes_even_if_all_trials_fail() -> None:
    (trials, segments), _ = simulate(config(), random.Random(0), lambda number, rung: None)
    assert {trial.state for trial in trials.values()} == {"failed"}
    assert len(segments) == 16


DETERMINISTIC = st.sampled_from(["adaptive", "halving", "hyperband"])


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    total=st.integers(1, 30),
    generation=st.integers(1, 9),
    base=st.integers(2, 4),
    scheduler=DETERMINISTIC,
)
def test_nothing_depends_on_the_order_in_which_segments_are_finished(
    seed: int, total: int, generation: int, base: int, scheduler: str
) -> None:
    study = config((total,), (1, 9, base), generation, scheduler)
    assert simulate(study, random.Random(seed)) == simulate(study, random.Random(0))


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), first=st.integers(1, 20), more=st.integers(1, 20), scheduler=DETERMINISTIC)
def test_an_extension_leaves_what_is_there_and_is_the_same_whenever_it_comes(
    seed: int, first: int, more: int, scheduler: str
) -> None:
    before, _ = simulate(config((first,), scheduler=scheduler), random.Random(seed))
    kept: Any = ({**before[0]}, {**before[1]})
    both = config((first, first + more), scheduler=scheduler)
    after, _ = simulate(both, random.Random(seed), rows=before)
    assert after == simulate(both, random.Random(1))[0]
    assert all(after[0][number] == trial for number, trial in kept[0].items())


def test_extending_by_whole_generations_is_the_same_as_asking_for_all_at_once() -> None:
    assert simulate(config((16, 32)), random.Random(0)) == simulate(config((32,)), random.Random(0))


def test_suggestions_see_one_rung_more_of_every_bracket_further_back() -> None:
    _, asked = simulate(config((32,)), random.Random(0), lambda number, rung: float(number))
    assert asked[0] == {}
    assert asked[8] == {number: [(1, float(number))] for number in range(8)}
    assert asked[24][7] == [(1, 7.0), (3, 7.0), (9, 7.0)]
    assert asked[24][15] == [(1, 15.0), (3, 15.0)]
    assert asked[24][23] == [(1, 23.0)]


def test_brackets_overlap_like_the_stages_of_a_pipeline() -> None:
    trials = {number: Trial(number, f"u{number}", {}) for number in range(8)}
    segments = [Segment(number, 0, 1, "done", float(number)) for number in range(8)]
    step = plan(config(), trials.values(), segments)
    assert step.ask == range(8, 16)
    assert [(row.number, row.epochs) for row in step.segments] == [(5, 3), (6, 3), (7, 3)]


def test_half_of_what_was_planned_being_there_changes_nothing() -> None:
    trials = {number: Trial(number, f"u{number}", {}) for number in range(8)}
    some = [Segment(number, 0, 1) for number in range(3)]
    step = plan(config(), trials.values(), some)
    assert [row.number for row in step.segments] == [3, 4, 5, 6, 7]
    few = {number: trials[number] for number in range(5)}
    assert plan(config(), few.values(), []).ask == range(0, 8)


def test_segments_that_suggestions_wait_for_are_most_urgent() -> None:
    waiting = [Segment(9, 0, 1), Segment(3, 1, 3), Segment(2, 3, 27), Segment(8, 0, 1), Segment(9, 2, 9)]
    waiting.sort(key=scheduler(config()).priority)
    assert [(row.number, row.rung) for row in waiting] == [(3, 1), (8, 0), (9, 0), (2, 3), (9, 2)]


def test_a_scheduler_that_this_version_does_not_know_is_refused() -> None:
    with pytest.raises(StoreError, match=r"one of adaptive, .*, but got 'bohb'; use the Rekindle and the packages"):
        plan(config(scheduler="bohb"), [], [])


# Hyperband


def test_hyperband_has_the_brackets_of_the_paper() -> None:
    """Table 1 of arXiv:1603.06560: R = 81, base 3."""
    study = config((143 + 20,), (1, 81, 3), scheduler="hyperband")
    result = [(len(bracket.numbers), bracket.rung) for bracket in brackets(study)]
    assert result == [(81, 0), (34, 1), (15, 2), (8, 3), (5, 4), (20, 0)]
    (_, segments), _ = simulate(study, random.Random(0), lambda number, rung: float(number))
    table = [
        [sum(row.rung == rung for row in segments.values() if row.number in bracket.numbers) for rung in range(5)]
        for bracket in brackets(study)
    ]
    assert table == [
        [81, 27, 9, 3, 1],
        [0, 34, 11, 3, 1],
        [0, 0, 15, 5, 1],
        [0, 0, 0, 8, 2],
        [0, 0, 0, 0, 5],
        [20, 6, 2, 1, 1],
    ]
    assert scheduler(study).entrants() == [sum(column) for column in zip(*table, strict=True)]


def test_brackets_of_hyperband_follow_on_a_study_that_is_extended() -> None:
    result = brackets(config((20, 30, 60), (1, 9, 3), scheduler="hyperband"))
    assert [(bracket.numbers, bracket.rung) for bracket in result] == [
        (range(0, 9), 0),
        (range(9, 14), 1),
        (range(14, 17), 2),
        (range(17, 20), 0),
        (range(20, 25), 1),
        (range(25, 28), 2),
        (range(28, 30), 0),
        (range(30, 35), 1),
        (range(35, 38), 2),
        (range(38, 47), 0),
        (range(47, 52), 1),
        (range(52, 55), 2),
        (range(55, 60), 0),
    ]


def test_suggestions_of_hyperband_see_one_rung_more_of_every_bracket_further_back() -> None:
    _, asked = simulate(config((30,), (1, 9, 3), scheduler="hyperband"), random.Random(0), lambda n, rung: float(n))
    assert asked[9] == {n: [(1, float(n))] for n in range(9)}
    assert asked[14] == {n: [(1, float(n)), *([(3, float(n))] if n > 5 else [])] for n in range(9)} | {
        n: [(3, float(n))] for n in range(9, 14)
    }
    assert asked[17][8] == [(1, 8.0), (3, 8.0), (9, 8.0)]
    assert asked[17][16] == [(9, 16.0)]


# ASHA


def finished(segments: dict[tuple[int, int], Segment], rung: int) -> list[int]:
    """The trials that have a score at a rung, the best first."""
    rows = [row for row in segments.values() if row.rung == rung and row.state == "done"]
    return [row.number for row in sorted(rows, key=lambda row: (-(row.score or 0.0), row.number))]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    total=st.integers(1, 60),
    generation=st.integers(1, 9),
    base=st.integers(2, 4),
    first=st.integers(0, 30),
)
def test_asha_promotes_the_best_of_a_rung_so_far_in_every_order(
    seed: int, total: int, generation: int, base: int, first: int
) -> None:
    def check(step: Plan, rows: Rows) -> None:
        trials, segments = rows
        for row in step.segments:
            if row.rung:
                ranked = finished(segments, row.rung - 1)
                assert row.number in ranked[: len(ranked) // base]
        ready = sum(row.state == "ready" for row in segments.values()) + len(step.segments)
        lacking = len(trials) < study.trials[-1] and trials.keys() >= {row.number for row in segments.values()}
        assert not lacking or step.ask or ready >= generation  # there is work for a generation

    rng = random.Random(seed)
    study = config((first,) if first else (total,), (1, 9, base), generation, "asha")
    rows, _ = simulate(study, rng, check=check)
    if first:
        study = config((first, first + total), (1, 9, base), generation, "asha")
        rows, _ = simulate(study, rng, rows=rows, check=check)
    trials, segments = rows
    assert sorted(trials) == list(range(study.trials[-1]))
    top = len(study.rungs) - 1
    for number, trial in trials.items():
        mine = [segments[number, rung] for rung in range(top + 1) if (number, rung) in segments]
        state = "failed" if mine[-1].state == "failed" else "complete" if mine[-1].rung == top else "pruned"
        assert trial.state == state
        assert [row.rung for row in mine] == list(range(len(mine)))
    for rung in range(top):  # who belongs to the best in the end was promoted, unless it was pruned before
        ranked = finished(segments, rung)
        left_out = [n for n in ranked[: len(ranked) // base] if (n, rung + 1) not in segments]
        assert all(number < first for number in left_out)


def test_asha_waits_for_nobody() -> None:
    study = config(scheduler="asha")
    trials = {number: Trial(number, f"u{number}", {}) for number in range(8)}
    rows = [Segment(n, 0, 1, *(("done", float(n)) if n < 3 else ())) for n in range(8)]
    step = plan(study, trials.values(), rows)
    assert [(row.number, row.rung) for row in step.segments] == [(2, 1)]
    assert step.ask == range(8, 16)  # five are in training, and one is promoted
    assert step.seen == {0: [(1, 0.0)], 1: [(1, 1.0)], 2: [(1, 2.0)]}


def test_asha_trains_those_first_that_have_come_furthest() -> None:
    waiting = [Segment(9, 0, 1), Segment(3, 1, 3), Segment(8, 0, 1), Segment(2, 3, 27)]
    waiting.sort(key=scheduler(config(scheduler="asha")).priority)
    assert [(row.number, row.rung) for row in waiting] == [(2, 3), (3, 1), (8, 0), (9, 0)]


def test_asha_ends_a_study_only_as_it_was_seen() -> None:
    """Somebody may extend it at that moment."""
    trials = [Trial(0, "u0", {}), Trial(1, "u1", {}, state="complete")]
    rows = [Segment(0, 0, 1, "done", 0.0), Segment(1, 0, 1, "done", 1.0)]
    step = plan(config((2,), (1, 3, 3), scheduler="asha"), trials, rows)
    assert (step.finished, step.exact) == ([(0, "pruned")], True)
