"""Simulators whose state can be taken out whole."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from .joined import JoinedActions

# Wrappers that hold nothing but the steps so far. Any other may remember what no test of a few steps would show.
TRANSPARENT = (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker, JoinedActions)


def only_transparent(env: gym.Env[Any, Any]) -> bool:
    """Whether nothing but a time limit lies around the environment."""
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, TRANSPARENT):
            return False
        env = env.env
    return True


def has_snapshot(env: gym.Env[Any, Any]) -> bool:
    """Whether a snapshot may be tried: Gymnasium's own MuJoCo environments keep their state in MjData."""
    module = type(env.unwrapped).__module__
    return module.startswith("gymnasium.envs.mujoco.") and hasattr(env.unwrapped, "data") and only_transparent(env)


def keeps_world(env: gym.Env[Any, Any]) -> bool:
    """Whether a reset keeps the Box2D world."""
    world = getattr(env.unwrapped, "world", None)
    if world is None or not type(world).__module__.startswith("Box2D"):
        return False
    env.reset(seed=0)
    return getattr(env.unwrapped, "world", None) is world


def take(env: gym.Env[Any, Any]) -> NDArray[np.float64]:
    """The simulator's state: time, positions, velocities, controls and the solver's warm start."""
    mujoco: Any = import_module("mujoco")
    inner: Any = env.unwrapped
    state = np.empty(mujoco.mj_stateSize(inner.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(inner.model, inner.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


def put(env: gym.Env[Any, Any], state: NDArray[np.float64], elapsed: int) -> None:
    """Puts a simulator's state into an environment that was reset, ``elapsed`` steps into its episode."""
    mujoco: Any = import_module("mujoco")
    inner: Any = env.unwrapped
    mujoco.mj_setState(inner.model, inner.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, gym.wrappers.TimeLimit):
            layer._elapsed_steps = elapsed  # type: ignore[assignment]  # declared as None there
        layer = layer.env
