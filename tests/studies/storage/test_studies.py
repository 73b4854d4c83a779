"""Studies, trials and segments, and workers that claim them, on SQLite and PostgreSQL."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from rekindle.studies.errors import LeaseLost, ResultMismatch, StoreError, StudyMismatch, TaskBusy, UnknownStudy
from rekindle.studies.storage.rows import Result, Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.storage.studies import check_same

CONFIG = {"task": "ppo", "space": {"gamma": [0.9, 0.999]}, "trials": 16, "none": None}


@pytest.fixture
def planned(store: Store) -> Store:
    """A study of three trials, each with a segment to its first rung."""
    store.change_study("cartpole", lambda _: CONFIG)
    store.add_rows("cartpole", trials=[Trial(n, f"uid{n}", {"gamma": 0.9 + n / 100}, {"group": 0}) for n in range(3)])
    store.add_rows("cartpole", segments=[Segment(n, 0, 9) for n in range(3)])
    return store


def test_a_study_is_made_once_and_keeps_its_configuration(store: Store) -> None:
    made = store.change_study("cartpole", lambda stored: CONFIG if stored is None else stored)
    assert store.change_study("cartpole", lambda stored: stored or {}) == made == store.study("cartpole")
    assert store.studies() == [made]
    assert store.change_study("cartpole", lambda stored: {**(stored or {}), "trials": 32}).config["trials"] == 32


def test_a_configuration_that_differs_is_refused_by_what_differs() -> None:
    other = {**CONFIG, "space": {"gamma": [0.5, 0.9]}, "trials": 32}
    with pytest.raises(
        StudyMismatch, match=r"'cartpole' differs in trials .*, space.gamma \(\[0.9, 0.999\], now \[0.5, 0.9\]\); use"
    ):
        check_same("cartpole", CONFIG, other)
    with pytest.raises(StudyMismatch, match=r"extra \(absent, now 1\)"):
        check_same("cartpole", CONFIG, {**CONFIG, "extra": 1})
    with pytest.raises(StudyMismatch, match=r"differs in fixed.gamma \(absent, now 0.9\); use"):  # not in fixed
        check_same("cartpole", {**CONFIG, "fixed": {}}, {**CONFIG, "fixed": {"gamma": 0.9}})
    check_same("cartpole", CONFIG, {**CONFIG})


def first_trials(*gammas: float) -> dict[str, Any]:
    """A configuration whose first trials have these discount factors."""
    return {**CONFIG, "options": {"known": [{"gamma": gamma, "optimizer.lr": 0.1} for gamma in gammas]}}


@pytest.mark.parametrize(
    ("stored", "config", "differs"),
    [
        (first_trials(0.9, 0.8), first_trials(0.9, 0.7), r"known\[1\].gamma \(0.8, now 0.7\)"),
        (first_trials(*[0.9] * 9), CONFIG, r"known \(\[{'gamma': 0.9, .{80,90}\.\.\., now absent\)"),
        (
            first_trials(*[0.9] * 9),
            first_trials(0.9),
            r"known \(.*\.\.\., now \[{'gamma': 0.9, 'optimizer.lr': 0.1}\]\)",
        ),
    ],
)
def test_first_trials_that_differ_are_named_by_what_differs(
    stored: dict[str, Any], config: dict[str, Any], differs: str
) -> None:
    with pytest.raises(StudyMismatch, match=rf"differs in options.{differs}; use") as refusal:
        check_same("cartpole", stored, config)
    assert len(str(refusal.value)) < 400
    check_same("cartpole", stored, {**stored})


def test_an_unknown_study_is_answered_with_those_that_there_are(store: Store) -> None:
    with pytest.raises(UnknownStudy, match="no study 'pendulum'; there is none in this storage yet"):
        store.study("pendulum")
    store.change_study("cartpole", lambda _: CONFIG)
    for call in (
        store.study,
        lambda name: store.add_rows(name, trials=[]),
        lambda name: store.add_rows(name, segments=[]),
    ):
        with pytest.raises(UnknownStudy, match="no study 'pendulum'; there are 'cartpole'"):
            call("pendulum")


def test_rows_are_added_if_they_are_not_there(planned: Store) -> None:
    planned.add_rows("cartpole", trials=[Trial(2, "another", {}), Trial(3, "uid3", {"gamma": 0.93})])
    planned.add_rows("cartpole", segments=[Segment(2, 0, 1), Segment(2, 1, 27)])
    trials = planned.trials("cartpole")
    assert [(trial.number, trial.uid, trial.state) for trial in trials] == [(n, f"uid{n}", "running") for n in range(4)]
    assert (trials[1].params, trials[1].attrs) == ({"gamma": 0.91}, {"group": 0})
    assert trials[1].created is not None
    segments = planned.segments("cartpole")
    assert [(segment.number, segment.rung, segment.epochs) for segment in segments] == [
        (0, 0, 9),
        (1, 0, 9),
        (2, 0, 9),
        (2, 1, 27),
    ]


def test_a_segment_is_finished_once_under_its_lease(planned: Store, write: Callable[..., Any]) -> None:
    lease = planned.open("uid0", {})
    planned.save([write(lease, 9)])
    for _ in range(2):
        planned.finish_segments(
            "cartpole", [Result(lease, 0, 0, score=475.0, digest="d", metrics=[(9, {"evaluation": 475.0})])]
        )
    assert planned.segments("cartpole")[0] == Segment(0, 0, 9, "done", 475.0, "d")
    assert planned.metrics("uid0") == [(9, {"return": 9.0, "evaluation": 475.0})]
    with pytest.raises(ResultMismatch, match=r"segment 0 of trial 0 of study 'cartpole' already has the result .*475"):
        planned.finish_segments("cartpole", [Result(lease, 0, 0, score=476.0, digest="d")])
    with pytest.raises(
        ResultMismatch, match=r"segment 5 of trial 0 of study .* cannot be finished, because it does not exist"
    ):
        planned.finish_segments("cartpole", [Result(lease, 0, 5, score=1.0)])
    with pytest.raises(ValueError, match="got NaN; fail the trial instead"):
        planned.finish_segments("cartpole", [Result(lease, 0, 0, score=math.nan)])
    lease.release()
    with pytest.raises(LeaseLost):
        planned.finish_segments("cartpole", [Result(lease, 0, 0, score=475.0, digest="d")])


def test_a_failed_trial_keeps_its_traceback(planned: Store) -> None:
    lease = planned.open("uid1", {})
    planned.fail_trial(lease, "cartpole", 1, 0, "Traceback: loss is NaN")
    trial = planned.trials("cartpole")[1]
    assert (trial.state, trial.error) == ("failed", "Traceback: loss is NaN")
    assert trial.finished is not None
    assert planned.segments("cartpole")[1].state == "failed"


def test_any_worker_may_finish_a_trial_and_all_agree(planned: Store) -> None:
    for _ in range(2):
        planned.add_rows("cartpole", finished=[(2, "pruned")])
    assert planned.trials("cartpole")[2].state == "pruned"
    with pytest.raises(ResultMismatch, match=r"trial 2 of study 'cartpole' already has the result .*pruned.*complete"):
        planned.add_rows("cartpole", finished=[(2, "complete")])


def test_a_claim_takes_what_is_free_in_order(planned: Store) -> None:
    held = planned.open("uid1", {})
    claimed = planned.claim("cartpole", ["uid2", "uid1", "uid0"])
    assert [lease.uid for lease, _ in claimed] == ["uid2", "uid0"]
    assert planned.claim("cartpole", ["uid0", "uid1", "uid2"]) == []
    held.release()
    assert planned.claim("cartpole", ["uid1"], limit=0) == []
    assert [lease.uid for lease, _ in planned.claim("cartpole", ["uid0", "uid1", "new"], limit=1)] == ["uid1"]
    assert planned.events("uid1")[-1].data["study"] == "cartpole"


def test_a_task_is_opened_with_a_claimed_lease_only_if_that_is_given(planned: Store) -> None:
    ((lease, _),) = planned.claim("cartpole", ["uid0"])
    with pytest.raises(TaskBusy):
        planned.open("uid0", {"seed": 1})
    assert planned.open("uid0", {"seed": 1}, lease) is lease
    assert planned.tasks(["uid0"])[0].identity == {"seed": 1}
    lease.release()
    ((lease, _),) = planned.claim("cartpole", ["uid0"])
    lease.release()
    with planned.open("uid0", {"seed": 1}, lease) as again:
        assert again is not lease


def test_workers_are_the_living_processes_that_hold_something(planned: Store) -> None:
    assert planned.workers() == []
    lease = planned.open("uid0", {})
    assert planned.workers() == [planned.tasks(["uid0"])[0].owner]
    lease.release()
    assert planned.workers() == []


def test_trials_of_one_study_are_not_those_of_another(planned: Store) -> None:
    planned.change_study("other", lambda _: CONFIG)
    planned.add_rows("other", trials=[Trial(0, "uid0", {})])
    assert len(planned.trials("other")) == 1
    assert len(planned.trials("cartpole")) == 3
    with pytest.raises(StoreError):
        planned.add_rows("other", segments=[Segment(7, 0, 1)])  # no such trial


def test_rows_carry_their_configuration_and_replicate(store: Store) -> None:
    store.change_study("s", lambda _: {"options": {"seeds": 3}})
    store.add_rows("s", trials=[Trial(n, f"uid{n}", {}) for n in range(5)], segments=[Segment(4, 0, 1)])
    rows = [*store.trials("s"), *store.segments("s")]
    assert [(row.configuration, row.replicate) for row in rows] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 1)]
    changes = store.changes("s")
    assert changes is not None
    assert [*changes.trials, *changes.segments] == rows
