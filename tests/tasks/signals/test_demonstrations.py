"""Demonstrations: recorded exactly, checked before learning, and part of a task's identity."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from rekindle import PPO, SVPG, Store
from rekindle.spaces import flatten, unflatten
from rekindle.tasks import load
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.errors import NotInitialized, StateMismatch
from rekindle.tasks.signals.demonstrations import BadDemonstrations, Demonstrations
from support_path import SUPPORT

SMALL: dict[str, Any] = {"epoch_steps": 64, "num_steps": 16, "num_envs": 2, "num_minibatches": 2, "model.width": 16}
CLONING = {**SMALL, "cloning.use": True, "cloning.batch_size": 8}


def shown(steps: int = 30, action: int = 1) -> Demonstrations:
    rng = np.random.default_rng(0)
    begins = (np.arange(steps) % 10 == 0).astype(np.float32)
    return Demonstrations(rng.normal(size=(steps, 4)).astype(np.float32), np.full(steps, action), begins)


def make(demonstrations: Any = None, env: str = "CartPole-v1", seed: int = 1, **more: Any) -> PPO:
    storage, start = more.pop("storage", None), more.pop("start", None)
    task = PPO(env, seed=seed, storage=storage, demonstrations=demonstrations)
    return task.init(start=start, **unflatten({**CLONING, **flatten(more)}))


def without(values: dict[str, Any]) -> dict[str, Any]:
    return unflatten({**SMALL, **values})


# Files


def test_demonstrations_come_back_from_a_file_as_they_were(tmp_path: Path) -> None:
    before = shown()
    after = Demonstrations.load(before.save(tmp_path / "new" / "demo.npz"))
    for name in ("observations", "actions", "begins"):
        assert np.array_equal(getattr(before, name), getattr(after, name))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["demo.npz"]


def test_actions_are_recorded_as_the_environment_takes_them() -> None:
    task = PPO("CartPole-v1", seed=1).init(**without({}))
    result = task.record(3)
    assert result.steps == sum(task.returns(3))  # a reward of 1 for each step
    assert result.begins.sum() == 3
    starts = [*np.flatnonzero(result.begins), result.steps]
    for first, last in itertools.pairwise(starts):
        world = gym.make("CartPole-v1").unwrapped
        world.reset(seed=0)
        world.state = result.observations[first].astype(np.float64)  # type: ignore[attr-defined]
        for step in range(first, last):
            np.testing.assert_allclose(np.asarray(world.state), result.observations[step], atol=1e-4)  # type: ignore[attr-defined]
            assert task.act(result.observations[step]) == result.actions[step]
            world.step(int(result.actions[step]))
    assert task.digest == PPO("CartPole-v1", seed=1).init(**without({})).digest  # recording changes nothing


def test_actions_of_a_box_are_recorded_within_its_bounds() -> None:
    task = PPO("Pendulum-v1", seed=1).init(**without({"model.std_init": 1.0}))
    result = task.record(1, deterministic=False)
    assert result.actions.shape == (200, 1)
    assert np.abs(result.actions).max() == 2


def test_all_particles_are_recorded() -> None:
    task = SVPG("CartPole-v1", seed=1).init(num_steps=8, num_envs=2, epoch_steps=64, num_particles=2)
    result = task.record(2)
    assert (result.begins.sum(), result.steps) == (4, sum(task.returns(2)))


def test_episodes_of_somebody_elses_become_what_networks_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    saw = [{"position": np.ones(2, np.float32), "inner": {"side": 0, "flags": np.array([0, 1], np.int8)}}] * 2
    result = Demonstrations.of("own_envs:DictWalk-v0", (saw, [np.int64(1), np.int64(3)]), (saw[:1], [np.int64(2)]))
    assert result.observations.shape == (3, 6)
    assert result.actions.tolist() == [0, 2, 1]  # choices that begin at 1
    assert result.begins.tolist() == [1, 0, 1]
    row = np.ones(2, np.float32)
    rows = Demonstrations.of("own_envs:RowsWalk-v0", ([row], [np.array([3, 2])]))
    assert rows.actions.tolist() == [[2, 3]]  # and at 1 and -1
    grid = Demonstrations.of("own_envs:GridWalk-v0", ([row], [np.array([[3, 2, 1], [0, 6, 2]])]))
    assert grid.actions.tolist() == [[2, 3, 1, 0, 4, 2]]
    with pytest.raises(BadDemonstrations, match=r"an action must lie in Discrete\(3, start=1\), but step 0 .* is .*0"):
        Demonstrations.of("own_envs:DictWalk-v0", (saw[:1], [np.int64(0)]))
    with pytest.raises(BadDemonstrations, match="episode 0 has 2 observations and 1 actions"):
        Demonstrations.of("own_envs:DictWalk-v0", (saw, [np.int64(1)]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.zeros(29, np.int64)}, "the same number of observations, actions and begins"),
        ({"observations": np.zeros((30, 4)) * np.nan}, "finite numbers, but observations are not"),
        ({"begins": np.zeros(30)}, "begins must be 1 at the first step of each episode"),
        ({"begins": np.full(30, 2.0)}, "begins must be 1 at the first step of each episode"),
        ({"actions": np.array(["left"] * 30)}, "finite numbers, but actions are not"),
    ],
)
def test_invalid_demonstrations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadDemonstrations, match=message):
        Demonstrations(**{**vars(shown()), **changes})


def test_a_file_that_holds_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "demo.npz"
    with pytest.raises(BadDemonstrations, match=r"there is no file .*; a task that has started resumes without"):
        make(path)
    path.write_bytes(b"no archive")
    with pytest.raises(BadDemonstrations, match=r"must be an \.npz file of observations, actions, begins"):
        make(path)
    np.savez(path, observations=np.array([{}]), actions=np.zeros(1), begins=np.ones(1))  # pickled
    with pytest.raises(BadDemonstrations, match=r"must be an \.npz file"):
        make(path)
    np.savez(path, **{**vars(shown()), "begins": np.zeros(30)})
    with pytest.raises(BadDemonstrations, match=r"demo\.npz: .*begins must be 1 at the first step of each episode"):
        make(path)
    with pytest.raises(BadDemonstrations, match=r"call it demo\.npz"):
        shown().save(tmp_path / "demo.pkl")
    with pytest.raises(BadDemonstrations, match="Demonstrations or a file, but got a int"):
        make(3)


@pytest.mark.parametrize(
    ("given", "env", "message"),
    [
        (shown(), "Acrobot-v1", r"observations are torch.float32 of shape \(30, 6\), but those .* \(30, 4\)"),
        (shown(action=2), "CartPole-v1", r"actions must lie in Discrete\(2\), counted from 0, but got 2 to 2"),
        (shown(action=-1), "CartPole-v1", "but got -1 to -1"),
        (Demonstrations(np.zeros((2, 4)), np.zeros(2), np.ones(2)), "CartPole-v1", "actions are torch.int64 of shape"),
        (Demonstrations(np.zeros((2, 3)), np.zeros((2, 2)), np.ones(2)), "Pendulum-v1", r"shape \(2, 1\), but those"),
    ],
)
def test_demonstrations_of_another_form_are_refused_and_leave_the_task_as_it_was(
    given: Demonstrations, env: str, message: str
) -> None:
    task = PPO(env, seed=1, demonstrations=given)
    with pytest.raises(BadDemonstrations, match=message):
        task.init(**unflatten(CLONING))
    assert task.hyperparameters is None


# What a task is


def test_the_content_is_part_of_the_identity_and_the_file_is_not(tmp_path: Path) -> None:
    one, same, other = make(shown()), make(shown().save(tmp_path / "a.npz")), make(shown(action=0))
    assert one.uid == same.uid
    assert one.digest == same.digest
    assert one.uid != other.uid
    assert one.identity.values == other.identity.values
    assert one.identity.values["demonstrated_steps"] == 30
    assert one.identity.start != other.identity.start
    with pytest.raises(StateMismatch, match="was told to start from 000000000000, but"):
        make(shown(), start="0" * 64)


def test_a_state_has_them_so_that_nothing_else_needs_the_file() -> None:
    whole, first = make(shown()), make(shown())
    whole.fit(2)
    first.fit(1)
    second = make(start=first.identity.start, demonstrated_steps=30)
    second.load_state_dict(first.state_dict())
    second.fit(2)
    assert second.digest == whole.digest


def test_a_stored_task_carries_on_without_its_file_and_with_another_it_is_another(tmp_path: Path) -> None:
    file = shown().save(tmp_path / "demo.npz")
    whole = make(shown())
    whole.fit(2)
    with Store(f"sqlite:///{tmp_path}/s.db") as store:
        first = make(file, storage=store)
        first.fit(1)
        first.finish()
        file.unlink()
        second = make(start=first.identity.start, demonstrated_steps=30, storage=store)
        assert (second.uid, second.resumed) == (first.uid, True)
        second.fit(2)
        assert second.digest == whole.digest
        second.finish()
        changed = make(shown(action=0).save(file), storage=store)
        assert not changed.resumed
        assert changed.uid != first.uid
        changed.release()


def test_a_task_without_what_it_learns_from_cannot_train() -> None:
    with pytest.raises(NotInitialized, match="learns from demonstrations, but has none; create it with"):
        make(demonstrated_steps=30).fit(1)
    with pytest.raises(BadDemonstrations, match=r"of shape \(7, 4\), but those given .* \(30, 4\)"):
        make(shown(), demonstrated_steps=7)


def test_a_task_that_does_not_learn_from_demonstrations_takes_none() -> None:
    with pytest.raises(ValueError, match="surrogate does not learn from demonstrations; leave demonst"):
        load("surrogate")("CartPole-v1", demonstrations=shown()).init()


def test_a_task_can_start_warm_and_be_shown_something() -> None:
    source = PPO("CartPole-v1", seed=9).init(**without({}))
    source.fit(1)
    task = PPO("CartPole-v1", seed=1, warm_start=source, demonstrations=shown()).init(**unflatten(CLONING))
    assert difference(task.model, source.model) == []
    assert task.identity.start not in (make(shown()).identity.start, "")
    assert str(task.load_report) == f"{len(source.model) + 3} loaded"
    assert "demonstrations.actions" not in task.policy()


def test_every_particle_is_shown_the_same() -> None:
    values = {"num_steps": 8, "num_envs": 2, "epoch_steps": 64, "num_particles": 3, "cloning": {"use": True}}
    task = SVPG("CartPole-v1", seed=1, demonstrations=shown()).init(**values)
    particles = task.state_dict()["learner"]["particles"]
    for name in ("0", "1", "2"):
        assert torch.equal(particles[name]["guidance"]["demonstrations"]["actions"], torch.ones(30, dtype=torch.int64))


# Cloning


def learner_of(*tasks: PPO) -> Any:
    return tasks[0].build_learner(list(tasks))


def test_cloning_lowers_the_negative_log_likelihood_of_choices() -> None:
    learner = learner_of(make(shown(), **{"cloning.batch_size": 30}))
    cloning, rows = learner.guidance.cloning, torch.arange(30)[None]
    params = learner.policy.action_params(torch.from_numpy(shown().observations)[None])
    expected = torch.nn.functional.cross_entropy(params[0], torch.ones(30, dtype=torch.int64))
    torch.testing.assert_close(cloning.loss(rows)[0], expected)
    for _ in range(20):
        learner.guidance.update(learner, {}, torch.full((1, 1), 0.03))
    assert cloning.loss(rows)[0] < 0.1 * expected
    params = learner.policy.action_params(torch.from_numpy(shown().observations)[None])
    assert params.argmax(-1).float().mean() > 0.9


def test_cloning_lowers_the_squared_distance_in_a_box_and_leaves_its_deviation_alone() -> None:
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(40, 3)).astype(np.float32)
    given = Demonstrations(seen, np.full((40, 1), 9.0), np.ones(40))  # further than the bound of 2
    learner = learner_of(make(given, env="Pendulum-v1", **{"cloning.batch_size": 40}))
    assert learner.guidance.examples.tensors["actions"].unique().tolist() == [2]
    log_std = learner.policy.parameters.views["actor.log_std"].clone()
    loss = learner.guidance.cloning.loss(torch.arange(40)[None])
    mean = learner.policy.action_params(torch.from_numpy(seen)[None])[..., :1]
    torch.testing.assert_close(loss[0], (mean - 2).square().mean())
    for _ in range(20):
        report = learner.guidance.update(learner, {}, torch.full((1, 1), 0.03))
    assert report["cloning_loss"] < 0.1 * loss
    assert torch.equal(learner.policy.parameters.views["actor.log_std"], log_std)


def test_the_learning_rate_of_cloning_falls_to_0_over_its_steps_and_then_nothing_moves() -> None:
    forever, soon = make(shown(), **{"cloning.strength": 0.5}), make(shown(), seed=2, **{"cloning.steps": 128})
    learner, lr = learner_of(forever, soon), torch.full((2, 1), 0.01)
    rates = []
    for env_steps in (0, 64, 128, 1000):
        learner.env_steps = env_steps
        rates.append(learner.guidance.cloning.learning_rate(learner.env_steps, lr)[:, 0].tolist())
    np.testing.assert_allclose(rates, [[0.005, 0.01], [0.005, 0.005], [0.005, 0.0], [0.005, 0.0]])
    before = [learner.member_state(member) for member in range(2)]
    learner.guidance.update(learner, {}, lr)
    after = [learner.member_state(member) for member in range(2)]
    assert difference(before[1], after[1]) == []
    assert "policy/vector" in difference(before[0], after[0])


def test_an_update_clones_as_many_samples_as_it_is_told_in_another_order_each_time() -> None:
    def cloned(**values: Any) -> list[list[int]]:
        learner = learner_of(make(shown(), **values))
        taken: list[list[int]] = []
        batch = learner.guidance.examples.batch

        def spy(rows: np.ndarray, normalizer: Any) -> Any:
            taken.append(rows[0].tolist())
            return batch(rows, normalizer)

        learner.guidance.examples.batch = spy
        learner.guidance.update(learner, {}, torch.full((1, 1), 0.01))
        learner.iterations += 1
        learner.guidance.update(learner, {}, torch.full((1, 1), 0.01))
        return taken

    every = cloned(**{"cloning.samples_per_update": 0})
    assert [len(rows) for rows in every] == [8, 8, 8] * 2  # of 30, in batches of 8
    assert len({row for rows in every[:3] for row in rows}) == 24
    assert every[:3] != every[3:]
    assert [len(rows) for rows in cloned(**{"cloning.samples_per_update": 17})] == [8, 8] * 2
    assert [len(rows) for rows in cloned(**{"cloning.samples_per_update": 3})] == [8] * 2
    assert [len(rows) for rows in cloned(**{"cloning.batch_size": 100})] == [30] * 2


def test_a_policy_with_a_memory_clones_sequences_that_forget_where_an_episode_begins() -> None:
    learner = learner_of(make(shown(), **{"model.memory": "gru", "num_minibatches": 1, "cloning.batch_size": 32}))
    cloning = learner.guidance.cloning
    assert (cloning.length, cloning.sequences, cloning.batch_size) == (16, 1, 1)
    loss = cloning.loss(torch.zeros(1, 1, dtype=torch.int64))
    obs = torch.from_numpy(shown().observations)
    memory, logs = torch.zeros(1, 1, 16), []
    for step in range(16):
        begins = torch.full((1, 1), float(step % 10 == 0))
        params, _, states = learner.policy.sequences(obs[None, step : step + 1], begins, memory, learning=False)
        memory = states[:, :, 0]
        logs.append(params.log_softmax(-1)[0, 0, 1])
    torch.testing.assert_close(loss[0].detach(), -torch.stack(logs).mean())
