"""The equations of classic control for any array library, exact as Gymnasium's.

The order of the arithmetic is Gymnasium's, too. One exception remains: Gymnasium squares some scalars with libm's
``pow(x, 2)``, which differs from the rounded product x * x in one of about 1300 cases. Acrobot's accelerations and
Pendulum's reward may therefore differ in the last bit.

``step(xp, state, action)`` returns (next state, reward, terminated), and ``observe(xp, state)`` the observation. States
and observations are tuples of (M,) arrays, one per component; a reward may be one float for all. ``xp`` is numpy or
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any

import numpy as np

State = tuple[Any, ...]
Outcome = tuple[State, Any, Any]


def identity(xp: Any, state: State) -> State:
    """Return the state as the observation."""
    return state


# Barto, Sutton and Anderson (1983), doi:10.1109/TSMC.1983.6313077.
GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH, FORCE, CART_DT = 9.8, 0.1, 0.1 + 1.0, 0.5, 10.0, 0.02
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * pi / 360


def cartpole(xp: Any, state: State, action: Any) -> Outcome:
    """Step a cart that balances a pole.

    The state is (x, x_dot, theta, theta_dot); actions push left or right.
    """
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


# Gymnasium's Pendulum-v1.
MAX_SPEED, PENDULUM_G, PENDULUM_DT = 8.0, 10.0, 0.05


def pendulum(xp: Any, state: State, action: Any) -> Outcome:
    """Step a pendulum that should swing up.

    The state is (theta, theta_dot); the action is a torque in [-2, 2] (float32).
    """
    theta, theta_dot = state
    angle = xp.remainder(theta + pi, 2 * pi) - pi
    cost = angle * angle + 0.1 * (theta_dot * theta_dot) + 0.001 * (action * action)
    theta_dot = theta_dot + (3 * PENDULUM_G / 2 * xp.sin(theta) + 3.0 * action) * PENDULUM_DT
    theta_dot = xp.clip(theta_dot, -MAX_SPEED, MAX_SPEED)
    theta = theta + theta_dot * PENDULUM_DT
    return (theta, theta_dot), -cost, xp.zeros_like(theta, dtype=xp.bool)


def pendulum_observation(xp: Any, state: State) -> State:
    """Return cosine and sine of the angle, and the angular velocity."""
    theta, theta_dot = state
    return xp.cos(theta), xp.sin(theta), theta_dot


# Sutton (1996), Generalization in reinforcement learning; the equations of Sutton and Barto's book.
ACROBOT_DT, MAX_VEL_1, MAX_VEL_2 = 0.2, 4 * pi, 9 * pi
MOST_TURNS = 6  # largest number of turns of a link in one step; the fastest states make 4.3


def acrobot(xp: Any, state: State, action: Any) -> Outcome:
    """Step two links that should swing up.

    The state is (theta1, theta2, their velocities); actions 0, 1, 2 are torques -1, 0, 1.
    """
    torque, h = action - 1.0, ACROBOT_DT
    k1 = _acrobot_derivative(xp, state, torque)
    k2 = _acrobot_derivative(xp, _move(state, h / 2, k1), torque)
    k3 = _acrobot_derivative(xp, _move(state, h / 2, k2), torque)
    k4 = _acrobot_derivative(xp, _move(state, h, k3), torque)
    theta_1, theta_2, speed_1, speed_2 = (
        s + h / 6.0 * (a + 2 * b + 2 * c + d) for s, a, b, c, d in zip(state, k1, k2, k3, k4, strict=True)
    )
    theta_1, theta_2 = _wrap(xp, theta_1), _wrap(xp, theta_2)
    speed_1, speed_2 = xp.clip(speed_1, -MAX_VEL_1, MAX_VEL_1), xp.clip(speed_2, -MAX_VEL_2, MAX_VEL_2)
    terminated = -xp.cos(theta_1) - xp.cos(theta_2 + theta_1) > 1.0
    return (theta_1, theta_2, speed_1, speed_2), terminated * 1.0 - 1.0, terminated


def _move(state: State, h: float, derivative: State) -> State:
    return tuple(s + h * d for s, d in zip(state, derivative, strict=True))


def _acrobot_derivative(xp: Any, state: State, torque: Any) -> State:
    """Return the derivative of the state with respect to time.

    Masses, lengths and moments of inertia are 1, centers of mass at 0.5, and g is 9.8.
    """
    theta_1, theta_2, speed_1, speed_2 = state
    cos, sin = xp.cos(theta_2), xp.sin(theta_2)
    d1 = 0.25 + (1.25 + cos) + 1.0 + 1.0
    d2 = 0.25 + 0.5 * cos + 1.0
    phi_2 = 0.5 * 9.8 * xp.cos(theta_1 + theta_2 - pi / 2)
    phi_1 = -0.5 * (speed_2 * speed_2) * sin - speed_2 * speed_1 * sin + 1.5 * 9.8 * xp.cos(theta_1 - pi / 2) + phi_2
    acc_2 = (torque + d2 / d1 * phi_1 - 0.5 * (speed_1 * speed_1) * sin - phi_2) / (1.25 - d2 * d2 / d1)
    acc_1 = -(d2 * acc_2 + phi_1) / d1
    return speed_1, speed_2, acc_1, acc_2


def _wrap(xp: Any, angle: Any) -> Any:
    """Return the angle in [-pi, pi], turn by turn as Gymnasium does."""
    for _ in range(MOST_TURNS):
        far = xp.abs(angle) > pi
        if xp is np and not far.any():  # on a GPU this test would have to wait for the result
            break
        angle = xp.where(far, angle - xp.copysign(xp.full_like(angle, 2 * pi), angle), angle)
    return angle


def acrobot_observation(xp: Any, state: State) -> State:
    """Return cosines and sines of the angles, and the angular velocities."""
    theta_1, theta_2, speed_1, speed_2 = state
    return xp.cos(theta_1), xp.sin(theta_1), xp.cos(theta_2), xp.sin(theta_2), speed_1, speed_2


# Moore (1990), Efficient memory-based learning for robot control.
CAR_LEFT, CAR_RIGHT, CAR_SPEED = -1.2, 0.6, 0.07


def mountain_car(xp: Any, state: State, action: Any) -> Outcome:
    """Step a car between hills.

    The state is (position, velocity); actions 0, 1, 2 push left, do nothing, push right.
    """
    position, velocity = state
    velocity = velocity + ((action - 1) * 0.001 + xp.cos(3 * position) * -0.0025)
    position, velocity = _drive(xp, position, velocity)
    terminated = (position >= 0.5) & (velocity >= 0)
    return (position, velocity), -1.0, terminated


def mountain_car_continuous(xp: Any, state: State, action: Any) -> Outcome:
    """Step the car with a force in [-1, 1].

    Gymnasium keeps this state in float32, with a float64 cosine.
    """
    position, velocity = state
    slope = 0.0025 * xp.cos(xp.asarray(3 * position, dtype=xp.float64))
    velocity = velocity + (action * 0.0015 - xp.asarray(slope, dtype=xp.float32))
    position, velocity = _drive(xp, position, velocity)
    terminated = (position >= 0.45) & (velocity >= 0)
    force = xp.asarray(action, dtype=xp.float64)
    return (position, velocity), terminated * 100.0 - force * force * 0.1, terminated


def _drive(xp: Any, position: Any, velocity: Any) -> tuple[Any, Any]:
    """Move with a limited velocity; the left end stops the car."""
    velocity = xp.clip(velocity, -CAR_SPEED, CAR_SPEED)
    position = xp.clip(position + velocity, CAR_LEFT, CAR_RIGHT)
    stopped = (position <= CAR_LEFT) & (velocity < 0)
    return position, xp.where(stopped, 0.0, velocity)


@dataclass(frozen=True)
class Model:
    """An environment of classic control.

    Attributes:
        step, observe: see the module.
        scalar: name of Gymnasium's class in gymnasium.envs.classic_control, which has the same spaces.
        limit: steps after which an episode is truncated.
        start: (low, high) per component of the state, which starts uniformly between them.
        number: number of the model in kernels, see `compiled.control`.
        dtype: type of the state.
        continuous: whether actions are floats.
    """

    step: Callable[[Any, State, Any], Outcome]
    observe: Callable[[Any, State], State]
    scalar: str
    limit: int
    start: tuple[tuple[float, float], ...]
    number: int
    dtype: type[np.floating[Any]] = np.float64
    continuous: bool = False


MODELS = {
    "CartPole-v0": Model(cartpole, identity, "CartPoleEnv", 200, ((-0.05, 0.05),) * 4, 0),
    "CartPole-v1": Model(cartpole, identity, "CartPoleEnv", 500, ((-0.05, 0.05),) * 4, 0),
    "Pendulum-v1": Model(
        pendulum, pendulum_observation, "PendulumEnv", 200, ((-pi, pi), (-1.0, 1.0)), 1, continuous=True
    ),
    "Acrobot-v1": Model(acrobot, acrobot_observation, "AcrobotEnv", 500, ((-0.1, 0.1),) * 4, 2),
    "MountainCar-v0": Model(mountain_car, identity, "MountainCarEnv", 200, ((-0.6, -0.4), (0.0, 0.0)), 3),
    "MountainCarContinuous-v0": Model(
        mountain_car_continuous,
        identity,
        "Continuous_MountainCarEnv",
        999,
        ((-0.6, -0.4), (0.0, 0.0)),
        4,
        np.float32,
        True,
    ),
}
