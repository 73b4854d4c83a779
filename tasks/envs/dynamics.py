"""The equations of classic control, over any array library: Gymnasium's arithmetic in Gymnasium's order, so its very bits.

``step(xp, state, action)`` gives (next state, reward, terminated) and ``observe(xp, state)`` the observation. States and
observations are tuples of (M,) arrays, one per component; a reward may be one float for all. ``xp`` is numpy or torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any

import numpy as np

State = tuple[Any, ...]
Outcome = tuple[State, Any, Any]


def same(xp: Any, state: State) -> State:
    """The observation of environments that show their state."""
    return state


# Barto, Sutton and Anderson (1983), doi:10.1109/TSMC.1983.6313077.
GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH, FORCE, CART_DT = 9.8, 0.1, 0.1 + 1.0, 0.5, 10.0, 0.02
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * pi / 360


def cartpole(xp: Any, state: State, action: Any) -> Outcome:
    """A pole on a cart: state (x, x_dot, theta, theta_dot), actions push left or right."""
    x, x_dot, theta, theta_dot = state
    force = action * (2 * FORCE) - FORCE
    cos, sin = xp.cos(theta), xp.sin(theta)
    temp = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS
    theta_acc = (GRAVITY * sin - cos * temp) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS))
    x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS
    x, theta = x + CART_DT * x_dot, theta + CART_DT * theta_dot
    x_dot, theta_dot = x_dot + CART_DT * x_acc, theta_dot + CART_DT * theta_acc
    terminated = (xp.abs(x) > X_LIMIT) | (xp.abs(theta) > THETA_LIMIT)
    return (x, x_dot, theta, theta_dot), 1.0, terminated


@dataclass(frozen=True)
class Model:
    """An environment of classic control.

    Attributes:
        step, observe: see the module.
        scalar: the name of Gymnasium's class in gymnasium.envs.classic_control, whose spaces these are.
        limit: steps until an episode is truncated.
        start: (low, high) per component of the state, which starts uniform between them.
        dtype: of the state.
    """

    step: Callable[[Any, State, Any], Outcome]
    observe: Callable[[Any, State], State]
    scalar: str
    limit: int
    start: tuple[tuple[float, float], ...]
    dtype: type[np.floating[Any]] = np.float64


MODELS = {
    "CartPole-v0": Model(cartpole, same, "CartPoleEnv", 200, ((-0.05, 0.05),) * 4),
    "CartPole-v1": Model(cartpole, same, "CartPoleEnv", 500, ((-0.05, 0.05),) * 4),
}
