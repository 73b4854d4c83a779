"""Rewards of goals, in environments of the form of Gymnasium-Robotics' `GoalEnv`.

Observations are a Dict of `observation`, `achieved_goal` and `desired_goal`, and for every step

    reward = compute_reward(next_achieved_goal, desired_goal, info)
    terminated = compute_terminated(next_achieved_goal, desired_goal, info), if the environment has this method

Both are the environment's own methods. They are called with many goals at once, if that gives the same bits as one call
for each, and with an empty `info`.

Notation: B goals, G numbers in a goal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ..errors import UnsupportedSpace, class_and_text
from ..rng import streams
from ..runtime.progress import at_work
from .base.actions import Actions
from .base.failures import attribute, close_env
from .base.masks import with_legal_actions
from .base.observations import Observations
from .base.spec import EnvSpec
from .factory import allows_one, spaces_of
from .gym.layers import layers_of
from .gym.make import Env, make_env
from .gym.surroundings import guards_of
from .pools.makers import is_pool

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
STEPS = 64  # random steps on which the methods are compared with the environment
FLAT = spaces.Box | spaces.MultiBinary  # equal to their encoding, but for its type
Array = NDArray[Any]
OfGoals = Callable[[Array, Array], Array]  # of achieved and desired goals (B, G), as float32, to (B,)


class Goals(NamedTuple):
    """Goals of an environment.

    Attributes:
        achieved: columns of the achieved goal in an encoded observation.
        desired: columns of the desired goal.
        reward: rewards (B,) of achieved for desired goals, both (B, G).
        terminated: whether an episode terminates with them, (B,); None if that does not depend on goals.
    """

    achieved: slice
    desired: slice
    reward: OfGoals
    terminated: OfGoals | None


@lru_cache(maxsize=64)
def goals_of(spec: EnvSpec) -> Goals:
    """Return the goals of an environment, compared with its steps.

    Raises:
        UnsupportedSpace: it has no goals, or its rewards are no function of them.
    """
    with at_work():
        return _goals(spec)


def _goals(spec: EnvSpec) -> Goals:
    space = spaces_of(spec).observation
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    goal, encoder = parts.get(DESIRED), Observations(space, spec.id)
    numbers = encoder.kind == "vector" and ACHIEVED in parts
    if not numbers or not isinstance(goal, FLAT) or parts[ACHIEVED].shape != goal.shape:
        raise _refusal(
            spec,
            f"needs observations of numbers with {ACHIEVED} and {DESIRED}, a Box or MultiBinary each and of one shape",
            space,
        )
    if is_pool(spec) or spec.behaviour or allows_one(spec) or spec.draws_arguments:
        raise _refusal(
            spec, "asks a second environment for rewards", "a pool, a behaviour, a simulator or arguments drawn anew"
        )
    with guards_of(spec.id).always:
        env = with_legal_actions(make_env(spec), spec.id)
        try:
            reward, terminated = _functions(env, spec, goal)
        except BaseException:
            close_env(env, spec)
            raise
    return Goals(encoder.columns(ACHIEVED), encoder.columns(DESIRED), reward, terminated)


def _functions(env: Env, spec: EnvSpec, goal: spaces.Space[Any]) -> tuple[OfGoals, OfGoals | None]:
    """Return an environment's functions of goals, compared with its steps."""
    if not _has(env, "compute_reward"):
        raise _refusal(spec, "needs the method compute_reward(achieved_goal, desired_goal, info)", "none")
    achieved, desired, rewards, ends = _steps(env, spec)
    reward = _checked(env, "compute_reward", spec, goal, (achieved, desired, rewards))
    if not _has(env, "compute_terminated"):
        return reward, None
    return reward, _checked(env, "compute_terminated", spec, goal, (achieved, desired, ends))


def _has(env: Env, method: str) -> bool:
    return any(attribute(layer, method) is not None for layer in layers_of(env))


def _refusal(spec: EnvSpec, rule: str, got: object) -> UnsupportedSpace:
    return UnsupportedSpace(
        f"{spec.id}: replay.relabel {rule}, but the environment has {got}; leave replay.relabel out"
    )


def _steps(env: Env, spec: EnvSpec) -> tuple[Array, Array, Array, Array]:
    """Return achieved and desired goals, rewards and ends of random steps."""
    actions, key = Actions(env.action_space, spec.id), streams.key(0, "goals")
    size = int(np.prod(actions.learner_shape))
    draws = streams.uniform(key, np.arange(STEPS * size)).reshape(STEPS, size)
    env.reset(seed=0)
    rows: list[tuple[Any, ...]] = []
    for action in actions.decode(actions.pick(draws)):
        obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((*(np.array(obs[name]) for name in (ACHIEVED, DESIRED)), reward, terminated))
        if terminated or truncated:
            env.reset()
    achieved, desired, rewards, ends = (np.stack(column) for column in zip(*rows, strict=True))
    return achieved, desired, rewards, ends


def _checked(env: Env, name: str, spec: EnvSpec, goal: Any, steps: tuple[Array, Array, Array]) -> OfGoals:
    """Return a method of an environment as a function of arrays.

    Raises:
        UnsupportedSpace: it gives something else than the steps.
    """
    method, (achieved, desired, results) = env.get_wrapper_attr(name), steps

    def one_by_one(achieved: Array, desired: Array) -> Array:
        return np.array([method(*pair, {}) for pair in zip(achieved, desired, strict=True)], np.float32).reshape(-1)

    def at_once(achieved: Array, desired: Array) -> Array:
        return np.asarray(method(achieved, desired, [{} for _ in achieved]), np.float32)

    try:
        got = one_by_one(achieved, desired)
    except Exception as error:
        raise _refusal(spec, f"calls {name} with an empty info", f"one that raises {class_and_text(error)}") from error
    if got.shape != results.shape:
        one = np.shape(method(achieved[0], desired[0], {}))
        raise _refusal(spec, f"needs one number of {name} for two goals", f"one that gives an array of shape {one}")
    wrong = ~np.isclose(got, results, rtol=1e-4, atol=1e-6)
    if wrong.any():
        k = int(np.argmax(wrong))
        rule = f"needs steps that give what {name} gives for the same goals"
        raise _refusal(spec, rule, f"{results[k]} in a step where it gives {got[k]}")
    others = np.roll(achieved, 1, 0), desired  # goals that were not in one step, too
    together = all(_agree(at_once, one_by_one, *(x[:n] for x in others)) for n in (1, 2, STEPS))
    method_of_arrays = at_once if together else one_by_one

    def function(achieved: Array, desired: Array) -> Array:
        with guards_of(spec.id).stepping:
            return method_of_arrays(*(x.reshape(-1, *goal.shape).astype(goal.dtype) for x in (achieved, desired)))

    return function


def _agree(at_once: OfGoals, one_by_one: OfGoals, achieved: Array, desired: Array) -> bool:
    """Return whether one call gives the same bits as many."""
    try:
        together = at_once(achieved, desired)
    except Exception:  # noqa: BLE001  # of the environment's code, which takes one goal at a time
        return False
    return np.array_equal(together, one_by_one(achieved, desired))
