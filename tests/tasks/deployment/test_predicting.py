"""Acting: single observations and batches, in the environment's own form, by the evaluated policy."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector.utils import batch_space
from rekindle import DQN, PPO, PQN, SAC, SVPG, Task
from rekindle.spaces import unflatten
from rekindle.tasks.envs.base.spec import EnvSpec
from rekindle.tasks.envs.gym.make import make_env
from rekindle.tasks.errors import BadResume, UnsupportedSpace

ON: dict[str, Any] = {"num_steps": 8, "num_envs": 4, "epoch_steps": 64, "model.width": 16}
OFF: dict[str, Any] = {"learning_starts": 120, "buffer_size": 200, "batch_size": 32, "epoch_steps": 128}
OFF |= {"num_envs": 2, "model.width": 16}
MEMORY = {"model.memory": "lstm", "model.sequence_length": 8, "model.burn_in": 4}
CASES = [
    (PPO, "own_envs:DictWalk-v0", ON),  # a Dict of observations, and actions that begin at 1
    (PPO, "own_envs:GridWalk-v0", ON),
    (PPO, "own_envs:BitsWalk-v0", ON),
    (PPO, "Pendulum-v1", {**ON, "normalize_obs": True}),
    (SVPG, "CartPole-v1", {**ON, "num_particles": 2}),
    (DQN, "own_envs:ImageWalk-v0", {**OFF, "model.encoder": "small"}),
    (SAC, "own_envs:HybridWalk-v0", OFF),
    (PPO, "CartPole-v1", {**ON, "model.memory": "gru"}),
    (SAC, "Pendulum-v1", {**OFF, **MEMORY}),
]


def env_of(task: Task) -> gym.Env[Any, Any]:
    """The environment as a user would make it, without Rekindle's wrapper around Dict actions."""
    name = task.env.id
    return gym.make(name) if ":" not in name else make_env(EnvSpec(name, kwargs=task.env.kwargs)).unwrapped


def stacked(parts: list[Any]) -> Any:
    """Observations as one batch."""
    if isinstance(parts[0], dict):
        return {name: stacked([part[name] for part in parts]) for name in parts[0]}
    return np.stack(parts)


@pytest.mark.parametrize(("task_class", "env", "values"), CASES)
def test_actions_are_such_as_the_environment_takes_alone_and_in_a_batch(task_class: Any, env: str, values: Any) -> None:
    task = task_class(env).init(**values)
    task.fit(1)
    digest, real, play = task.digest, env_of(task), task.player()
    observation, state, output = real.reset(seed=1)[0], None, []
    for _ in range(6):
        output.append(observation)
        action, state = task.predict(observation, state)
        assert real.action_space.contains(action)
        np.testing.assert_equal(action, play(observation))
        observation, *_ = real.step(action)
    batch, states = task.predict(stacked(output))
    assert batch_space(real.action_space, 6).contains(batch)
    alone = [task.act(one) for one in output]  # each at the beginning of an episode
    flat = gym.spaces.utils.flatten
    for i, one in enumerate(alone):
        np.testing.assert_allclose(flat(real.action_space, one), flat(real.action_space, picked(batch, i)), atol=1e-5)
    assert (states is None) == ("model.memory" not in values)
    assert task.digest == digest


def picked(batch: Any, index: int) -> Any:
    """One action of a batch."""
    if isinstance(batch, dict):
        return {name: picked(part, index) for name, part in batch.items()}
    return tuple(picked(part, index) for part in batch) if isinstance(batch, tuple) else batch[index]


def test_a_state_remembers_and_an_episodes_start_forgets() -> None:
    task = PPO("CartPole-v1").init(**ON, **{"model.memory": "gru"})
    first, second = (np.array([[x, 0.5, -x, 0.1]] * 2, np.float32) for x in (0.5, -1.0))
    _, after = task.predict(first)
    _, both = task.predict(second, after, np.array([False, True]))
    _, remembered = task.predict(second, after)
    _, begun = task.predict(second)
    assert np.array_equal(both[0], remembered[0])
    assert np.array_equal(both[1], begun[1])
    assert not np.array_equal(both[0], both[1])
    assert task.value(second, after)[0] != task.value(second)[0]
    with pytest.raises(ValueError, match=r"state must be the one that predict returned, of shape \(1, 16\)"):
        task.predict(second[0], after)


@pytest.mark.parametrize(("algorithm", "values"), [(DQN, {**OFF, "num_envs": 1}), (PQN, ON)])
def test_random_actions_become_fewer_with_training(algorithm: type[Task], values: dict[str, Any]) -> None:
    task = algorithm("CartPole-v1").init(**unflatten({**values, "exploration.horizon": 64, "exploration.final": 0.0}))
    observation = np.random.default_rng(1).normal(size=(400, 4)).astype(np.float32)
    before, _ = task.predict(observation, deterministic=False)
    assert (before != task.predict(observation)[0]).mean() > 0.3
    task.predict(observation, deterministic=False)
    task.fit(1)
    after, _ = task.predict(observation, deterministic=False)
    assert np.array_equal(after, task.predict(observation)[0])


def test_random_actions_differ_from_call_to_call_and_not_from_task_to_task() -> None:
    tasks = [PPO("Pendulum-v1", seed=4).init(**ON) for _ in range(2)]
    observation = np.zeros((500, 3), np.float32)
    drawn = [[task.predict(observation, deterministic=False)[0] for _ in range(2)] for task in tasks]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(*drawn[0])
    assert drawn[0][0].std() == pytest.approx(1.0, rel=0.1)
    assert np.array_equal(tasks[0].predict(observation[0])[0], tasks[1].act(observation[0]))


def test_values_are_those_of_the_critic() -> None:
    output = np.random.default_rng(1).normal(size=(4, 1, 4)).astype(np.float32)
    ppo, dqn = PPO("CartPole-v1").init(**ON), DQN("CartPole-v1").init(**OFF)
    for task in (ppo, dqn):
        policy: Any = task.member_ref().learner.agent or task.member_ref().learner  # type: ignore[attr-defined]
        policy = policy.policy
        x = torch.from_numpy(output[:, 0][None])
        expected = policy.value(x) if task is ppo else policy.values(x).amax(-1)
        np.testing.assert_allclose(task.value(output[:, 0]), expected[0].detach(), rtol=1e-5)
        assert task.value(output[0, 0]) == pytest.approx(float(expected[0, 0]), rel=1e-5)


@pytest.mark.parametrize(
    ("env", "values"),
    [("Pendulum-v1", {}), ("own_envs:DictWalk-v0", {}), ("own_envs:ImageWalk-v0", {"model.encoder": "small"})],
)
def test_a_soft_value_is_the_smaller_q_of_the_greedy_action(env: str, values: Any) -> None:
    task = SAC(env).init(**OFF, **values)
    learner: Any = task.member_ref().learner
    output = [task_env.reset(seed=i)[0] for i, task_env in enumerate([env_of(task)] * 3)]
    result = task.value(stacked(output))
    seen = np.zeros((1, 32, *learner.envs.obs_shape), learner.envs.obs.dtype)
    encode = task._predictor(task.member_ref())._encode
    seen[0, :3] = encode(stacked(output))[0][0]
    batch = learner.policy.encode({"obs": torch.from_numpy(seen), "next_obs": torch.from_numpy(seen)})
    means, _, logits = learner.actions.split(learner.policy.outputs_of(batch)[0])
    q = learner.policy.q(batch, torch.tanh(means)).amin(1)[0].detach()
    best = q[torch.arange(32), logits[0].argmax(-1)] if logits.shape[-1] else q[:, 0]
    np.testing.assert_allclose(result, best[:3], rtol=1e-4)


def test_critics_with_states_of_their_own_give_no_value() -> None:
    with pytest.raises(UnsupportedSpace, match="critics have recurrent states of their own"):
        SAC("Pendulum-v1").init(**OFF, **MEMORY).value(np.zeros(3, np.float32))


def test_an_invalid_observation_is_named() -> None:
    task, walk = PPO("CartPole-v1").init(**ON), PPO("own_envs:DictWalk-v0").init(**ON)
    with pytest.raises(ValueError, match=r"ppo on CartPole-v1.*must have the form of Box.*but got the shape \(3,\)"):
        task.act(np.zeros(3))
    with pytest.raises(ValueError, match=r"must have the form of Box.*but got rows of unequal lengths$"):
        task.act([[0, 0, 0, 0], [0]])
    with pytest.raises(ValueError, match=r"must have the form of Dict.*but got one without \['inner', 'flags'\]"):
        walk.predict({"position": np.zeros(2)})
    mixed = {"position": np.zeros((2, 2)), "inner": {"side": 0, "flags": np.zeros((2, 2))}}
    with pytest.raises(ValueError, match="but got parts of"):
        walk.predict(mixed)


@pytest.mark.parametrize("look", ["policy", "evaluate", "record", "parameters", "player", "save_policy", "predict"])
def test_a_bad_task_is_not_looked_at(look: str) -> None:
    task = PPO("CartPole-v1").init(**ON)
    task.fail(RuntimeError("half done"))
    arguments = {"save_policy": ["x.safetensors"], "predict": [np.zeros(4)]}.get(look, [])
    with pytest.raises(BadResume, match=r"RuntimeError: half done.*Build a new task"):
        getattr(task, look)(*arguments)


def test_no_task_begins_with_the_networks_of_a_bad_one() -> None:
    task = PPO("CartPole-v1").init(**ON)
    task.fail(RuntimeError("half done"))
    with pytest.raises(BadResume, match="half done"):
        PPO("CartPole-v1", warm_start=task).init(**ON)


def test_a_task_that_has_acted_lets_go_of_its_learner() -> None:
    task = DQN("CartPole-v1").init(**unflatten(OFF))
    observation = np.zeros(4, np.float32)
    for leave in (lambda: task.load_state_dict(task.state_dict()), task.finish):
        task.predict(observation)
        assert task.ref is not None
        learner = weakref.ref(task.ref.learner)
        leave()
        gc.collect()
        assert learner() is None
