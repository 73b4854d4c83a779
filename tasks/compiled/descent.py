"""Kernels of gradients and optimizers, on vectors (P, D).

The hyperparameters and step counts of optimizers are (P, 1). Only members with `active` (P, 1) take a step.
"""

from __future__ import annotations

import math

from .layers import ONE, F, dot
from .loading import kernel

STATE = (
    "void(b1[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1]"
)


@kernel("void(f4[:,::1], f4[:,::1], f4[:,::1])")
def clip(gradient, limits, factors):
    """Clip the norm of each member's gradient to its limit.

    The limits are (P, 1). The factors (P, 1) are filled in.
    """
    members, size = gradient.shape
    for p in range(members):
        g = gradient[p]
        factor = limits[p, 0] / (F(math.sqrt(dot(g, g))) + F(1e-6))
        factor = ONE if factor > ONE else factor
        factors[p, 0] = factor
        for i in range(size):
            g[i] *= factor


@kernel(f"{STATE}, f4[:,::1])", fastmath={"contract"})
def adam(active, vector, gradient, lr, steps, mean, square, beta1, beta2, eps, decay):
    """Take a step of Adam, with decoupled weight decay.

    The step starts from the vector multiplied by 1 - decay.
    """
    members, size = vector.shape
    for p in range(members):
        if active[p, 0]:
            x, g, m, s = vector[p], gradient[p], mean[p], square[p]
            steps[p, 0] += ONE
            first, second = 1.0 - beta1[p, 0] ** float(steps[p, 0]), 1.0 - beta2[p, 0] ** float(steps[p, 0])
            part1, part2, keep = ONE - beta1[p, 0], ONE - beta2[p, 0], ONE - decay[p, 0]
            scale = math.sqrt(second)
            rate, floor = F(lr[p, 0] * scale / first), F(eps[p, 0] * scale)
            for i in range(size):
                m[i] += part1 * (g[i] - m[i])
                s[i] += part2 * (g[i] * g[i] - s[i])
                x[i] = keep * x[i] - rate * m[i] / (math.sqrt(s[i]) + floor)


@kernel(f"{STATE})", fastmath={"contract"})
def rmsprop(active, vector, gradient, lr, steps, square, velocity, alpha, momentum, eps):
    """Take a step of RMSprop."""
    members, size = vector.shape
    for p in range(members):
        if active[p, 0]:
            x, g, s, v = vector[p], gradient[p], square[p], velocity[p]
            steps[p, 0] += ONE
            part, rate, kept, floor = ONE - alpha[p, 0], lr[p, 0], momentum[p, 0], eps[p, 0]
            for i in range(size):
                s[i] += part * (g[i] * g[i] - s[i])
                v[i] = kept * v[i] + g[i] / (math.sqrt(s[i]) + floor)
                x[i] -= rate * v[i]
