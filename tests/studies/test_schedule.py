"""Successive halving as a pure function of rows, simulated without any training."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rekindle.studies.config import BadConfig, Config, parse_epochs
from rekindle.studies.rows import Segment, Trial
from rekindle.studies.schedule import Seen, plan, priority
from simulating import Told


def config(trials: tuple[int, ...] = (16,), epochs: tuple[int, ...] = (1, 27, 3), generation: int = 8) -> Config:
    return Config("ppo", 1, {}, 0, {}, {}, list(epochs), list(trials), generation)


Rows = tuple[dict[int, Trial], dict[tuple[int, int], Segment]]


def score_of(number: int, rung: int) -> float | None:
    """A score that changes its ranking from rung to rung; None fails the trial."""
    return None if (number, rung) in ((5, 0), (2, 1)) else float(hash((number * 7919 + rung * 104729) % 1009))


def simulate(
    config: Config,
    rng: random.Random,
    score: Callable[[int, int], float | None] = score_of,
    rows: Rows | None = None,
) -> tuple[Rows, dict[int, Seen]]:
    """Carries rows forward to the end, finishing one ready segment at a time in random order, planning at random."""
    trials, segments = rows or ({}, {})
    asked: dict[int, Seen] = {}
    told = Told(config)
    while True:
        step = told.plan(trials, segments)
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


def test_the_best_third_goes_on_and_ties_go_to_the_lower_number() -> None:
    (trials, segments), _ = simulate(config((8,)), random.Random(0), lambda number, rung: float(number in (6, 7)))
    assert [number for number in range(8) if (number, 1) in segments] == [0, 6, 7]
    assert [number for number in range(8) if (number, 3) in segments] == [6]
    assert {number: trial.state for number, trial in trials.items() if trial.state != "pruned"} == {6: "complete"}


def test_a_failed_trial_takes_no_place_of_a_good_one() -> None:
    (trials, segments), _ = simulate(config((8,)), random.Random(0), lambda n, rung: None if n < 6 else float(n))
    assert [number for number in range(8) if (number, 1) in segments] == [6, 7]
    assert [trials[number].state for number in range(8)] == ["failed"] * 6 + ["pruned", "complete"]


def test_a_study_in_which_all_trials_fail_comes_to_its_end() -> None:
    (trials, segments), _ = simulate(config(), random.Random(0), lambda number, rung: None)
    assert {trial.state for trial in trials.values()} == {"failed"}
    assert len(segments) == 16


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), total=st.integers(1, 30), generation=st.integers(1, 9), base=st.integers(2, 4))
def test_nothing_depends_on_the_order_in_which_segments_are_finished(
    seed: int, total: int, generation: int, base: int
) -> None:
    study = config((total,), (1, 9, base), generation)
    assert simulate(study, random.Random(seed)) == simulate(study, random.Random(0))


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), first=st.integers(1, 20), more=st.integers(1, 20))
def test_an_extension_leaves_what_is_there_and_is_the_same_whenever_it_comes(seed: int, first: int, more: int) -> None:
    before, _ = simulate(config((first,)), random.Random(seed))
    kept: Any = ({**before[0]}, {**before[1]})
    both = config((first, first + more))
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


def test_what_the_next_suggestions_wait_for_is_most_urgent() -> None:
    waiting = [Segment(9, 0, 1), Segment(3, 1, 3), Segment(2, 3, 27), Segment(8, 0, 1), Segment(9, 2, 9)]
    waiting.sort(key=lambda row: priority(config(), row))
    assert [(row.number, row.rung) for row in waiting] == [(3, 1), (8, 0), (9, 0), (2, 3), (9, 2)]
