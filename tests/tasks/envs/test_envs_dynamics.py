"""The equations of classic control equal Gymnasium's to the last bit."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs import classic_control
from rekindle.tasks.envs.classic.dynamics import MODELS, _acrobot_derivative

IDS = sorted(set(MODELS) - {"CartPole-v0"})


def draw_actions(space: gym.Space, rng: np.random.Generator, size: int) -> np.ndarray:
    if isinstance(space, gym.spaces.Discrete):
        return rng.integers(0, space.n, size)
    return rng.uniform(space.low, space.high, (size, 1)).astype(np.float32)[:, 0]


# libm's pow(x, 2), with which Gymnasium squares scalars there (a float32 torque too), is not always x * x rounded.
ROUNDED = {"Acrobot-v1": (1e-12, 0.0), "Pendulum-v1": (0.0, 1e-10)}  # how far state and reward may differ


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("actions_of", ["random", "constant", "extreme"])
def test_equals_gymnasium_over_600_steps(name: str, actions_of: str) -> None:
    model, rng, size = MODELS[name], np.random.default_rng(3), 5
    state_error, reward_error = ROUNDED.get(name, (0.0, 0.0))
    env = getattr(classic_control, model.scalar)()
    env.reset(seed=0)
    continuous = isinstance(env.action_space, gym.spaces.Box)
    state = tuple(rng.uniform(low, high, size).astype(model.dtype) for low, high in model.start)
    actions = draw_actions(env.action_space, rng, size)
    for k in range(600):
        if actions_of == "random":
            actions = draw_actions(env.action_space, rng, size)
        elif actions_of == "extreme" and continuous:
            actions = np.where(k // 40 % 2, env.action_space.low, env.action_space.high).repeat(size)
        following, rewards, terminated = model.step(np, state, actions)
        obs = np.stack([part.astype(np.float32) for part in model.observe(np, following)], axis=1)
        for i in range(size):
            env.state = np.array([part[i] for part in state], model.dtype)
            env.steps_beyond_terminated = None
            want_obs, want_reward, want_end, _, _ = env.step(actions[i : i + 1] if continuous else actions[i])
            got, want = np.array([part[i] for part in following], np.float64), np.array(env.state, np.float64)
            assert np.abs(got - want).max() <= state_error, (k, i)
            assert abs(np.broadcast_to(rewards, size)[i] - want_reward) <= reward_error, (k, i)
            assert terminated[i] == want_end, (k, i)
            assert np.abs(obs[i] - want_obs).max() <= 1e6 * state_error, (k, i)
            if not state_error:
                assert obs[i].tobytes() == want_obs.tobytes(), (k, i)
        state = following


def test_acrobot_equals_gymnasium_bit_for_bit_where_both_square_arrays() -> None:
    state, torque = np.random.default_rng(0).uniform(-3, 3, (4, 999)), np.resize([-1.0, 0.0, 1.0], 999)
    want = classic_control.AcrobotEnv()._dsdt(np.vstack([state, torque]))
    assert np.array_equal(want[:4], _acrobot_derivative(np, tuple(state), torque))


def test_pendulum_equals_gymnasium_bit_for_bit_where_both_square_arrays() -> None:
    rng = np.random.default_rng(0)
    state, action = rng.uniform(-8, 8, (2, 999)), rng.uniform(-2, 2, (1, 999)).astype(np.float32)
    env = classic_control.PendulumEnv()
    env.state = state
    _, reward, _, _, _ = env.step(action)
    following, got, _ = MODELS["Pendulum-v1"].step(np, tuple(state), action[0])
    assert np.array_equal(reward, got)
    assert np.array_equal(env.state, following)


@pytest.mark.parametrize("name", IDS)
def test_a_place_in_the_array_does_not_change_the_result(name: str) -> None:
    model, rng = MODELS[name], np.random.default_rng(5)
    state = tuple(rng.uniform(-3, 3, 67).astype(model.dtype) for _ in model.start)
    space = getattr(classic_control, model.scalar)().action_space
    actions = draw_actions(space, rng, 67)
    whole, rewards, ends = model.step(np, state, actions)
    rewards = np.broadcast_to(rewards, 67)
    for size in (1, 2, 3, 5, 7, 8, 9, 15, 17):
        for begin in range(0, 67 - size, 3):
            cut = slice(begin, begin + size)
            part, reward, ended = model.step(np, tuple(x[cut].copy() for x in state), actions[cut].copy())
            assert all(np.array_equal(x, y[cut]) for x, y in zip(part, whole, strict=True))
            assert np.array_equal(np.broadcast_to(reward, size), rewards[cut])
            assert np.array_equal(ended, ends[cut])


@pytest.mark.parametrize("name", IDS)
def test_the_same_equations_run_on_torch(name: str) -> None:
    model, rng = MODELS[name], np.random.default_rng(7)
    state = tuple(rng.uniform(-3, 3, 50).astype(model.dtype) for _ in model.start)
    actions = draw_actions(getattr(classic_control, model.scalar)().action_space, rng, 50)
    numpys, torches = [
        (*model.observe(xp, (step := model.step(xp, tuple(map(of, state)), of(actions)))[0]), *step[0], *step[1:])
        for xp, of in ((np, np.asarray), (torch, torch.from_numpy))
    ]
    for x, y in zip(numpys, torches, strict=True):
        assert np.allclose(x, np.asarray(y), rtol=1e-6)
