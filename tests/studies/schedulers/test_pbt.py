"""Population based training: simulated schedules, explore, and whole studies with killed workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gated import Gate
from rekindle.studies.cli import main
from rekindle.studies.engine.checked_config import make_population
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.snapshots import look
from rekindle.studies.engine.study_views import study_json
from rekindle.studies.errors import BadConfig, StudyMismatch
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from simulating import params, population, simulate
from studying import TINY, run, run_and_be_killed, run_by_three, undisturbed


def simple(members: int = 10, rungs: int = 3, exploit: str = "truncation", seed: int = 0) -> Config:
    """A configuration of which only the schedule is used."""
    return Config(
        "ppo",
        1,
        {},
        seed,
        {},
        {},
        [2, 2 * rungs, 1],
        [members],
        members,
        members,
        "random",
        "pbt",
        {"exploit": exploit, "explore": "perturb", "perturb": []},
    )


@pytest.mark.parametrize("exploit", ["truncation", "tournament"])
def test_the_order_in_which_results_come_changes_nothing(exploit: str) -> None:
    config = simple(rungs=5, exploit=exploit)
    (trials, segments), branches = simulate(config, random.Random(0))
    for seed in range(1, 6):
        other, also = simulate(config, random.Random(seed))
        assert other == (trials, segments)
        assert sorted(also, key=lambda branch: branch.number) == sorted(branches, key=lambda branch: branch.number)
    assert {segments[key].rung for key in segments} == set(range(5))
    for rung in range(5):  # the population keeps its size
        assert sum(row.rung == rung for row in segments.values()) == 10
    assert {trials[3].state, trials[7].state} <= {"failed", "pruned"}
    assert sorted(trials) == list(range(len(trials)))


def test_truncation_copies_the_best_fifth_to_the_worst_fifth() -> None:
    _, branches = simulate(simple(members=10, rungs=2), random.Random(0), lambda number, rung: float(number))
    assert [(branch.number, branch.member, branch.generation) for branch in branches] == [(10, 0, 1), (11, 1, 1)]
    assert {branch.start.number for branch in branches} <= {8, 9}
    assert {branch.start.epochs for branch in branches} == {2}
    parents = set()
    for seed in range(8):
        config = simple(members=10, rungs=2, seed=seed)
        _, branches = simulate(config, random.Random(0), lambda number, rung: float(number))
        parents |= {branch.start.number for branch in branches}
    assert parents == {8, 9}


def test_a_tournament_copies_only_what_is_better() -> None:
    _, branches = simulate(
        simple(members=10, rungs=2, exploit="tournament"), random.Random(0), lambda number, rung: float(number)
    )
    assert 2 < len(branches) < 10
    assert all(branch.start.number > branch.member for branch in branches)


@pytest.mark.parametrize("exploit", ["truncation", "tournament"])
def test_equals_are_not_copied_and_a_failed_member_is_replaced_by_a_living_one(exploit: str) -> None:
    config = simple(members=6, rungs=2, exploit=exploit)
    (trials, _), branches = simulate(config, random.Random(0), lambda number, rung: None if number == 2 else 1.0)
    [branch] = branches
    assert branch.member == 2
    assert branch.start.number != 2
    assert trials[2].state == "failed"
    assert trials[branch.number].state == "complete"


def test_a_population_of_which_nobody_lives_ends() -> None:
    (trials, segments), branches = simulate(simple(members=3), random.Random(0), lambda number, rung: None)
    assert {trial.state for trial in trials.values()} == {"failed"}
    assert (len(segments), branches) == (3, [])


def test_one_member_trains_to_the_end() -> None:
    (trials, segments), branches = simulate(simple(members=1), random.Random(0), lambda number, rung: 1.0)
    assert (len(trials), len(segments), branches) == (1, 3, [])


# Configurations


def test_structural_hyperparameters_are_fixed_and_the_rest_is_searched() -> None:
    config = population(fixed={"num_steps": 64})
    structural = {name for name, d in load("ppo").learner.hyperparameters.flat().items() if d.structural}
    assert not structural & set(config.open)
    assert config.fixed["num_steps"] == 64
    assert config.fixed["clip_value"] is None
    names = ("model.activation", "use_sde")
    in_order = [name for name in load("ppo").learner.hyperparameters.flat() if name in names]
    assert [name for name in config.fixed if name in in_order] == in_order  # the same in every process
    assert {"max_grad_norm", "target_kl"} <= set(config.open)
    assert config.rungs == (2, 4, 6)
    assert population(epochs=5).rungs == (2, 4, 5)
    assert population(epochs=1, interval=1).rungs == (1,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"perturb": ["num_steps"]}, "num_steps is structural"),
        ({"perturb": ["gama"]}, "did you mean gamma"),
        ({"exploit": "tournamnt"}, "did you mean tournament"),
        ({"explore": "x"}, "explore must be one of perturb, resample, pb2"),
        ({"sampler": "gp"}, "drawn at random, but --sampler is gp"),
        ({"members": 0}, "population must be an integer of at least 1, but got 0"),
        ({"interval": 0}, "interval must be an integer of at least 1, but got 0"),
        ({"interval": 9}, "--interval 9 is above the 6 epochs in all; lower it"),
        ({"members": 1}, "--population is 1; give it at least 2"),
    ],
)
def test_an_invalid_population_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        population(**options)


def test_a_population_needs_something_to_explore() -> None:
    everything = {name: value for name, value in params(population()).items() if name not in TINY}
    with pytest.raises(BadConfig, match="may change while it trains, but all of these are fixed"):
        population(fixed=everything)


def test_the_command_line_names_a_structural_hyperparameter(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "ppo", "CartPole-v1", "--scheduler", "pbt", "--perturb", "model.width", "--storage", sqlite_url]
    assert main(command) == 2
    assert "model.width is structural" in capsys.readouterr().err
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


# Studies


def test_members_train_as_one_cohort_and_copy_the_state_of_others(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = load("ppo").learner
    run_epoch = learner.run_epoch
    sizes: list[int] = []

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(self.members)
        return run_epoch(self, *args, **kwargs)

    monkeypatch.setattr(learner, "run_epoch", counted)
    with Store(sqlite_url) as store:
        start_study(store, "s", population())
        assert Worker(store, "s").run()
        assert sizes == [5] * 6
        trials = {trial.number: trial for trial in store.trials("s")}
        ends = {(row.number, row.epochs): row.digest for row in store.segments("s")}
        children = [trial for trial in trials.values() if "parent" in trial.attrs]
        assert children
        for child in children:
            start, parent = child.attrs["start"], trials[child.attrs["parent"]]
            assert (start["uid"], start["digest"]) == (parent.uid, ends[parent.number, start["epochs"]])
            [task] = store.tasks([child.uid])
            assert task.identity is not None
            assert task.identity["start"] == start["digest"]
            mine, theirs = (store.checkpoints(uid) for uid in (child.uid, parent.uid))
            [then] = [row for row in theirs if row.digest == start["digest"]]
            assert mine[0].digest == start["digest"]
            assert mine[0].blobs == then.blobs  # the same ones, by their names
            assert child.params != parent.params
            assert store.metrics(child.uid)[0][0] == start["epochs"] + 1
        view = study_json(store, "s")
        assert view["state"] == "complete"
        assert view["agreement"] == []  # members change between rungs, so ranks there are not compared
        assert [trial["branch"]["trial"] for trial in view["trials"] if trial["branch"]] == [
            child.attrs["parent"] for child in children
        ]
        snapshot = look(store, "s")
        assert snapshot.epochs == snapshot.epochs_total == 5 * 6
        assert snapshot.env_steps == TINY["epoch_steps"] * 30


@pytest.mark.slow  # some are killed in the next test
@pytest.mark.parametrize("options", [{"exploit": "tournament", "explore": "resample"}, {}])
def test_three_workers_train_the_population_that_one_trains(sqlite_url: str, options: dict[str, Any]) -> None:
    config = population(4, 4, **options)
    assert run_by_three(sqlite_url, config) == undisturbed(config)


def test_a_population_whose_workers_are_killed_ends_as_if_nothing_had_happened(
    sqlite_url: str, gate: Gate, wait_until: Callable[..., None]
) -> None:
    config = population(4, 4, env="gated:Gated-v0")
    assert run_and_be_killed(sqlite_url, config, gate, wait_until) == undisturbed(config)


def test_a_member_that_fails_is_replaced(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = load("ppo").learner

    def broken(self: Any, metrics: Any) -> list[str | None]:
        first = ((self.hp.optimizer.lr - 1e-3).abs() < 1e-9).flatten().tolist()  # trial 0
        return ["entropy became nan" if it else None for it in first]

    monkeypatch.setattr(learner, "find_nonfinite", broken)
    run(sqlite_url, population(3, 4))
    with Store(sqlite_url) as store:
        trials = store.trials("s")
    assert trials[0].state == "failed"
    assert [trial.state for trial in trials if trial.attrs.get("member") == 0] == ["complete"]


def test_a_population_keeps_its_size(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", population(4))
        with pytest.raises(StudyMismatch, match="generation"):
            start_study(store, "s", population(6))


def test_members_copy_those_that_are_best_by_the_return_of_a_behaviour(sqlite_url: str) -> None:
    small = {"epoch_steps": 64, "num_envs": 2, "deer": {"num_steps": 16}, "hunter": {"num_steps": 16}}
    config = make_population(
        load("behaviours"),
        "pettingzoo/hunt_env:Hunt",
        epochs=2,
        interval=1,
        population=5,
        fixed=small,
        objectives={"return.deer": "minimize"},
    )
    run(sqlite_url, config)
    with Store(sqlite_url) as store:
        first = {row.number: row.objectives or {} for row in store.segments("s") if row.rung == 0}
        [child] = [trial for trial in store.trials("s") if "parent" in trial.attrs]
    ranked = sorted(first, key=lambda number: first[number]["return.deer"])
    assert (child.attrs["parent"], child.attrs["member"]) == (ranked[0], ranked[-1])
