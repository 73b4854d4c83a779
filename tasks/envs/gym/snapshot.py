"""Snapshots of simulators: MuJoCo, and Atari emulators."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np

from ..base.envs import Array, Tree, to_tensor
from ..base.failures import attribute
from ..base.joined import JoinedActions
from .chance import OwnGenerators
from .make import Scaled
from .restarts import RestartOnError

# Wrappers whose only state is the number of steps. Others may have state that a test of a few steps would miss.
TRANSPARENT = (
    gym.wrappers.TimeLimit,
    gym.wrappers.OrderEnforcing,
    gym.wrappers.PassiveEnvChecker,
    JoinedActions,
    OwnGenerators,
    RestartOnError,
    Scaled,
)


def only_transparent(env: gym.Env[Any, Any]) -> bool:
    """Return whether all wrappers are transparent."""
    while isinstance(env, gym.Wrapper):
        if not isinstance(env, TRANSPARENT):
            return False
        env = env.env
    return True


def has_snapshot(env: gym.Env[Any, Any]) -> bool:
    """Return whether a snapshot is worth trying: for MuJoCo and Atari."""
    inner: Any = env.unwrapped
    mujoco = type(inner).__module__.startswith("gymnasium.envs.mujoco.") and attribute(inner, "data") is not None
    return (mujoco or (_is_atari(inner) and _is_whole(inner))) and only_transparent(env)


def _is_whole(inner: Any) -> bool:
    """Return whether an Atari emulator's state is complete.

    It lacks the last action, which sticky actions repeat. A test of a few steps may miss that, since actions are
    repeated by chance. A random frame skip is drawn by a generator outside of the emulator.
    """
    return isinstance(inner._frameskip, int) and inner.ale.getFloat("repeat_action_probability") == 0


def _is_atari(inner: Any) -> bool:
    return type(inner).__module__.startswith("ale_py.") and attribute(inner, "ale") is not None


def keeps_world(env: gym.Env[Any, Any]) -> bool:
    """Return whether a reset keeps the Box2D world."""
    world = attribute(env.unwrapped, "world")
    if world is None or not type(world).__module__.startswith("Box2D"):
        return False
    env.reset(seed=0)
    return attribute(env.unwrapped, "world") is world


def take(env: gym.Env[Any, Any]) -> Array:
    """Return the simulator's state.

    For MuJoCo these are time, positions, velocities, controls and the solver's warm start, as float64. For Atari it is
    the emulator with its random generator, as a varying number of bytes.
    """
    inner: Any = env.unwrapped
    if _is_atari(inner):
        return np.frombuffer(inner.ale.cloneState(include_rng=True).serialize(), np.uint8)
    mujoco: Any = import_module("mujoco")
    state = np.empty(mujoco.mj_stateSize(inner.model, mujoco.mjtState.mjSTATE_INTEGRATION))
    mujoco.mj_getState(inner.model, inner.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    return state


def put(env: gym.Env[Any, Any], state: Array, elapsed: int) -> None:
    """Load a simulator's state into a reset environment, ``elapsed`` steps in."""
    inner: Any = env.unwrapped
    if _is_atari(inner):
        inner.ale.restoreState(import_module("ale_py").ALEState(state.tobytes()))
    else:
        mujoco: Any = import_module("mujoco")
        mujoco.mj_setState(inner.model, inner.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, gym.wrappers.TimeLimit):
            layer._elapsed_steps = elapsed  # type: ignore[assignment]  # declared as None there
        layer = layer.env


def to_tree(states: Sequence[Array]) -> Tree:
    """Return several environments' states as part of a member's state."""
    if states[0].dtype == np.uint8:
        return {"simulator": to_tensor(np.concatenate(states)), "simulator_sizes": [len(state) for state in states]}
    return {"simulator": to_tensor(np.stack(states))}


def from_tree(tree: Tree) -> list[Array]:
    """Return the states in a tree of ``to_tree``."""
    states = tree["simulator"].numpy()
    if "simulator_sizes" in tree:
        return np.split(states, np.cumsum(tree["simulator_sizes"])[:-1])
    return list(states)
