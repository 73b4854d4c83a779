"""Kernels of classic control, with the bits of `envs.classic.dynamics`.

Sines and cosines are given: NumPy's round otherwise than those of the C library. Nothing is contracted or reordered.
"""

from __future__ import annotations

from math import pi

from .layers import F, kernel

GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH, FORCE, DT = 9.8, 0.1, 0.1 + 1.0, 0.5, 10.0, 0.02
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * pi / 360


@kernel("void(f8[::1], f8[::1], f8[::1], f8[::1], i8[::1], f8[::1], f8[::1], f4[:,::1], b1[::1])")
def cartpole(x, x_dot, theta, theta_dot, action, cos, sin, obs, terminated):
    """Step poles on carts, in place, and fill in observations."""
    for i in range(len(x)):
        force, c, s = action[i] * (2 * FORCE) - FORCE, cos[i], sin[i]
        temp = (force + POLE_MASS_LENGTH * (theta_dot[i] * theta_dot[i]) * s) / TOTAL_MASS
        theta_acc = (GRAVITY * s - c * temp) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (c * c) / TOTAL_MASS))
        x_acc = temp - POLE_MASS_LENGTH * theta_acc * c / TOTAL_MASS
        x[i] += DT * x_dot[i]
        theta[i] += DT * theta_dot[i]
        x_dot[i] += DT * x_acc
        theta_dot[i] += DT * theta_acc
        terminated[i] = abs(x[i]) > X_LIMIT or abs(theta[i]) > THETA_LIMIT
        obs[i, 0], obs[i, 1], obs[i, 2], obs[i, 3] = F(x[i]), F(x_dot[i]), F(theta[i]), F(theta_dot[i])
