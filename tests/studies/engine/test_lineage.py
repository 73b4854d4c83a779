"""Lineages: branches in the store, replays that compare digests, and forks."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from rekindle.spaces import unflatten
from rekindle.studies.engine.branching import score_at
from rekindle.studies.engine.checked_config import make_population
from rekindle.studies.engine.lineage import LineageError, NotEqual, lineage, restore, retrain
from rekindle.studies.engine.runner import start_study
from rekindle.studies.storage.branches import Start
from rekindle.studies.storage.retention import drop
from rekindle.studies.storage.rows import Trial
from rekindle.studies.storage.sql.schema import checkpoint
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from rekindle.tasks.errors import NotInitialized
from rekindle.tasks.task import Task
from studying import TINY, bits, run, tiny

CONFIG = make_population(
    load("ppo"), "CartPole-v1", epochs=8, interval=2, population=4, exploit="tournament", seed=3, fixed=unflatten(TINY)
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """A finished study of a population, which tests only read or add to, and what came of it."""
    url = f"sqlite:///{tmp_path_factory.mktemp('population') / 'a.db'}"
    return url, run(url, CONFIG)


@pytest.fixture
def finished(whole: tuple[str, dict[str, Any]]) -> str:
    return whole[0]


def deepest(store: Store) -> Trial:
    """The trial with the longest lineage."""
    return max(
        (trial for trial in store.trials("s") if trial.state == "complete"),
        key=lambda trial: len(lineage(store, trial.uid)),
    )


def parent_of(store: Store, lr: float = 1e-3, epochs: int = 2) -> Task:
    task = load("ppo")("CartPole-v1", storage=store).init(**unflatten({**TINY, "optimizer.lr": lr}))
    task.fit(epochs)
    return task


def test_a_lineage_leads_to_its_root_through_states_that_are_on_record(finished: str) -> None:
    with Store(finished) as store:
        trial = deepest(store)
        links = lineage(store, trial.uid)
        ends = {(row.number, row.epochs): row.digest for row in store.segments("s")}
        numbers = {row.uid: row.number for row in store.trials("s")}
    assert len(links) >= 3
    assert links[0].start is None
    assert links[-1].uid == trial.uid
    for before, link in pairwise(links):
        assert link.start is not None
        assert link.start.uid == before.uid
        assert link.start.digest == link.identity["start"] == ends[numbers[before.uid], link.start.epochs]


def test_a_replay_gives_the_same_digest_from_no_stored_state(
    finished: str, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(finished) as store:
        uid = deepest(store).uid
        links = lineage(store, uid)
        [last] = [row for row in store.segments("s") if row.epochs == 8 and row.number == deepest(store).number]
    status, out, _ = cli("replay", uid[:12], "--storage", finished, "--json")
    result = json.loads(out)
    assert status == 0
    assert (result["equal"], result["epochs"], result["reason"]) == (True, 8, None)
    assert result["digest"] == result["replayed"] == last.digest
    assert [row["uid"] for row in result["lineage"]] == [link.uid for link in links]
    status, out, errors = cli("replay", uid, "--storage", finished)
    assert status == 0
    assert out.startswith(f"equal: task {uid} after 8 epochs has the digest {last.digest}")
    assert errors.count("epochs") == len(links)


@pytest.mark.parametrize("at_end", [True, False])
def test_a_replay_that_differs_says_so_and_where(
    finished: str, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, at_end: bool
) -> None:
    with Store(finished) as store:
        uid = deepest(store).uid
        links = lineage(store, uid)
    victim = links[-1] if at_end else links[0]
    fit = Task.fit

    def other_bits(task: Task, epochs: int | None = None, context: Any = None) -> Any:
        metrics = fit(task, epochs, context)
        if task.uid == victim.uid and task.ref is not None:
            task.ref.learner.iterations += 1
        return metrics

    monkeypatch.setattr(Task, "fit", other_bits)
    status, out, _ = cli("replay", uid, "--storage", finished)
    assert status == 1
    assert out.startswith("not equal: ")
    assert (f"from which {links[1].uid} branches" in out) == (not at_end)


def test_a_halved_trial_can_be_replayed(sqlite_url: str, cli: Callable[..., Any]) -> None:
    run(sqlite_url, tiny(trials=4))
    with Store(sqlite_url) as store:
        uid = store.trials("s")[0].uid
    assert cli("replay", uid, "--storage", sqlite_url)[0] == 0


def test_a_fork_starts_from_a_stored_state_and_ends_otherwise(finished: str, cli: Callable[..., Any]) -> None:
    with Store(finished) as store:
        trial = deepest(store)
        start = lineage(store, trial.uid)[-1].start
    assert start is not None
    command = ("fork", trial.uid, "--at", str(start.epochs), "--set", "optimizer.lr=0.009", "--storage", finished)
    status, out, _ = cli(*command, "--json")
    assert status == 0
    result = json.loads(out)
    assert (result["from"], result["at"], result["epochs"]) == (trial.uid, start.epochs, 8)
    assert result["changed"] == {"optimizer.lr": [trial.params["optimizer.lr"], 0.009]}
    assert result["uid"] != trial.uid
    with Store(finished) as store:
        [segment] = [row for row in store.segments("s") if row.number == trial.number and row.epochs == 8]
        fork = lineage(store, result["uid"])[-1]
    assert result["return_before"] == segment.score
    assert result["digest"] != segment.digest
    assert fork.start == start
    status, out, _ = cli(*command, "--json")  # it is there already
    again = json.loads(out)
    assert (status, again["uid"], again["digest"]) == (0, result["uid"], result["digest"])
    assert cli("replay", result["uid"], "--storage", finished)[0] == 0
    status, out, _ = cli(*command)
    assert "return without the change" in out


@pytest.mark.slow
def test_a_fork_may_start_from_an_ancestor(finished: str, cli: Callable[..., Any]) -> None:
    with Store(finished) as store:
        uid = deepest(store).uid
        second = lineage(store, uid)[1]
    assert second.start is not None
    status, out, _ = cli(
        "fork", uid, "--at", str(second.start.epochs), "--set", "ent_coef=0.05", "--storage", finished, "--json"
    )
    assert status == 0
    with Store(finished) as store:
        links = lineage(store, json.loads(out)["uid"])
    assert links[-1].start == second.start


@pytest.mark.parametrize(
    ("at", "settings", "message"),
    [
        (None, ["num_steps=64"], "num_steps is structural: .* the checkpoint has 32; train a new task"),
        (None, ["max_grad_norm=null"], "max_grad_norm.enabled is structural"),
        (None, [], "give --set name=value"),
        (None, ["gama=1"], "did you mean gamma|gamma"),
        (None, ["gamma=2"], "gamma must be"),
        (1, ["gamma=0.9"], r"the one at 1 is not kept; those that are: \d"),
        (8, ["gamma=0.9"], r"the one at 8 is not kept; those that are: \d"),
        (99, ["gamma=0.9"], "the one at 99 is not kept"),
    ],
)
def test_an_invalid_fork_is_refused(
    finished: str, cli: Callable[..., Any], at: int | None, settings: list[str], message: str
) -> None:
    with Store(finished) as store:
        trial = deepest(store)
        start = lineage(store, trial.uid)[-1].start
        tasks = len(store.tasks())
    assert start is not None
    sets = [part for setting in settings for part in ("--set", setting)]
    status, _, errors = cli("fork", trial.uid, "--at", str(at or start.epochs), *sets, "--storage", finished)
    assert status == 2
    assert re.search(message, errors), errors
    with Store(finished) as store:
        assert len(store.tasks()) == tasks


def test_a_branch_is_a_row_on_the_same_blobs_and_is_made_once(store: Store) -> None:
    parent = parent_of(store)
    [*_, head] = store.checkpoints(parent.uid)
    start = Start(parent.uid, 2, head.digest)
    identity = {**parent.identity.to_json(), "start": head.digest}
    assert store.branch("child", identity, start)
    assert store.branch("child", identity, start)
    [row] = store.checkpoints("child")
    assert (row.epochs, row.digest, row.blobs) == (2, head.digest, head.blobs)
    assert [event.kind for event in store.events("child")] == ["branch"]
    for uid, other in (("other", Start(parent.uid, 2, "0" * 64)), ("orphan", Start("deleted", 2, head.digest))):
        assert not store.branch(uid, identity, other)
        assert store.checkpoints(uid) == []
        assert [event.kind for event in store.events(uid)] == ["branch"]


def test_states_that_branches_start_from_are_kept_and_the_others_are_not(store: Store) -> None:
    parent = parent_of(store)
    head = store.checkpoints(parent.uid)[-1]
    uid = "child"
    store.branch(uid, {**parent.identity.to_json(), "start": head.digest}, Start(parent.uid, 2, head.digest))
    for epochs in (3, 4, 5, 6):
        parent.fit(epochs)
    assert [row.epochs for row in store.checkpoints(parent.uid)] == [2, 5, 6]


def test_a_state_that_nobody_kept_is_trained_again(sqlite_url: str, whole: tuple[str, dict[str, Any]]) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", CONFIG)
        worker = Worker(store, "s")

        def branched() -> bool:
            return any("start" in trial.attrs for trial in store.trials("s"))

        assert not worker.run(branched)
        lost = [trial for trial in store.trials("s") if "start" in trial.attrs]
        uids = {uid for trial in lost for uid in (trial.uid, trial.attrs["start"]["uid"])}

        def forget(connection: sa.Connection) -> None:
            drop(connection, connection.scalars(sa.select(checkpoint.c.id).where(checkpoint.c.uid.in_(uids))).all())

        store.database.write(forget)
        assert Worker(store, "s").run()
        assert bits(store) == whole[1]


def test_a_state_that_cannot_be_trained_again_is_an_error(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        parent = parent_of(store)
        parent.finish()
        store.branch("child", {**parent.identity.to_json(), "start": "0" * 64}, Start(parent.uid, 2, "0" * 64))
        with pytest.raises(NotEqual, match=r"after 2 epochs task .* must have the digest 000000000000"):
            retrain(lineage(store, "child"), 3)


def test_a_lineage_that_the_store_does_not_know_is_an_error(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        with pytest.raises(LineageError, match="but nobody is none of them"):
            lineage(store, "nobody")
        parent = parent_of(store)
        store.branch("a", {**parent.identity.to_json(), "start": "0" * 64}, Start(parent.uid, 2, "0" * 64))
        store.branch("a", {**parent.identity.to_json(), "start": "0" * 64}, Start("a", 2, "0" * 64))
        with (
            store.open("b", {**parent.identity.to_json(), "start": "1" * 64}),
            pytest.raises(LineageError, match="do not"),
        ):
            lineage(store, "b")


def test_a_score_is_the_stored_one_or_measured_again(store: Store, cli: Callable[..., Any]) -> None:
    task = load("surrogate")(None, storage=store).init()
    url = store.database.url.render_as_string(hide_password=False)
    status, _, errors = cli("replay", task.uid, "--storage", url)
    assert (status, "a checkpoint at an epoch's end, but none of task" in errors) == (2, True), errors
    task.fit(2)
    task.finish()
    assert score_at(store, task.uid, 2) == task.evaluate()  # no score is stored


def test_a_stored_score_of_other_episodes_is_measured_again(store: Store) -> None:
    task = load("ppo")("CartPole-v1", eval_episodes=3, storage=store).init(**unflatten(TINY))
    task.fit(1)
    fewer = task.score_epoch()
    assert dict(store.metrics(task.uid))[1]["return"] == fewer
    assert score_at(store, task.uid, 1) == task.evaluate(20) != fewer


def test_a_branch_without_its_state_does_not_train(store: Store) -> None:
    parent = parent_of(store)
    state = parent.state_dict()
    values = unflatten({**TINY, "optimizer.lr": 5e-3})
    child = load("ppo")("CartPole-v1").init(start=parent.digest, **values)
    with pytest.raises(NotInitialized, match="of another task, which is missing"):
        child.fit(3)
    child = load("ppo")("CartPole-v1").init(start=parent.digest, **values)
    uid = child.uid
    child.load_state_dict(state, perturb=True)
    child.fit(3)
    assert child.uid == uid
    store.branch(uid, child.identity.to_json(), Start(parent.uid, 2, parent.digest))
    stored = load("ppo")("CartPole-v1", storage=store).init(start=parent.digest, **values)
    assert (stored.uid, stored.epochs, stored.resumed) == (uid, 2, True)
    stored.fit(3)
    assert stored.digest == child.digest


def test_a_lineage_is_a_schedule_whose_gain_and_luck_add_up(finished: str, cli: Callable[..., Any]) -> None:
    with Store(finished) as store:
        trial = deepest(store)
        links = lineage(store, trial.uid)
        [row] = store.tasks([trial.uid])
        stored = dict(store.metrics(trial.uid))[row.epochs]["return"]
    status, out, errors = cli("schedule", trial.uid, "--seeds", "3", "--json", "--storage", finished)
    assert status == 0, errors
    result = json.loads(out)
    ends = [link.start.epochs for link in links if link.start is not None]
    assert [stage["from"] for stage in result["stages"]] == [0, *ends]
    assert result["stages"][-1]["to"] == result["epochs"] == row.epochs
    for stage, link in zip(result["stages"], links, strict=True):
        assert stage["hyperparameters"].items() <= link.identity["hyperparameters"].items()
    assert len({json.dumps(stage["hyperparameters"]) for stage in result["stages"]}) > 1
    assert result["recorded"] == stored
    assert result["recorded"] == pytest.approx(result["schedule"]["value"] + result["luck"])
    assert result["gain"]["value"] == pytest.approx(result["schedule"]["value"] - result["last"]["value"])
    assert len({*result["schedule"]["results"]}) > 1  # seeds differ
    assert result["schedule"]["results"] != result["last"]["results"]
    output = " ".join(cli("schedule", trial.uid, "--seeds", "3", "--storage", finished)[1].split())
    for stage in result["stages"]:
        assert f"epochs {stage['from']} to {stage['to']}: " in output
    for text in (
        "return by this schedule, on 3 fresh seeds: ",
        "gain by the schedule, on 3 fresh seeds: ",
        "the recorded result is ",
    ):
        assert text in output


def test_a_schedule_is_measured_by_another_objective(finished: str, cli: Callable[..., Any]) -> None:
    with Store(finished) as store:
        trial = deepest(store)
        lengths = [metrics["episode_length"] for _, metrics in store.metrics(trial.uid) if "episode_length" in metrics]
    command = ("schedule", trial.uid, "--seeds", "3", "--json", "--storage", finished, "--objective")
    of_returns, by_length, median = (
        json.loads(cli(*command, name)[1]) for name in ("return", "episode_length", "return_median")
    )
    assert [result["objective"] for result in (of_returns, by_length)] == ["return", "episode_length"]
    assert by_length["recorded"] == lengths[-1]
    assert by_length["schedule"]["results"] != of_returns["schedule"]["results"]  # of episodes of training
    with Store(finished) as store:
        saved = store.load(trial.uid)
        assert saved is not None
        assert median["recorded"] == statistics.median(restore(saved).returns())
    status, _, errors = cli(*command, "episode_weight")
    assert status == 2
    assert f"but {trial.uid} has no episode_weight; --objective is one of " in errors
    assert ", episode_length, " in errors


def test_an_invalid_schedule_is_refused(finished: str, cli: Callable[..., Any]) -> None:
    with Store(finished) as store:
        trial = deepest(store)
        root = lineage(store, trial.uid)[0].uid
    for uid, seeds, message in (
        (trial.uid, "2", "at least 3 seeds, but --seeds is 2"),
        (root, "3", "did not: its hyperparameters never changed; `rekindle train --seed N`"),
    ):
        status, _, errors = cli("schedule", uid, "--seeds", seeds, "--storage", finished)
        assert (status, message in errors) == (2, True), errors
