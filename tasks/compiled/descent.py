"""Kernels of gradients and optimizers, on vectors (P, D).

Only members with `active` (P, 1) take a step.
"""

from __future__ import annotations

import math

from .layers import ONE, F, dot
from .loading import inner, kernel

ADAM, RMSPROP = 0, 1  # forms of optimizers; AdamW is Adam with a decay


@inner()
def clip_member(g, limit):
    """Clip the norm of a member's gradient; return the factor."""
    factor = limit / (F(math.sqrt(dot(g, g))) + F(1e-6))
    factor = ONE if factor > ONE else factor
    for i in range(len(g)):
        g[i] *= factor
    return factor


@inner(fastmath={"contract"})
def step_member(form, x, g, lr, decay, steps, square, other, settings):
    """Take a member's step, see `optimize`; Adam's starts from x multiplied by 1 - decay."""
    steps[0] += ONE
    eps, size = settings[2], len(x)
    if form == ADAM:
        beta1, beta2, keep = settings[0], settings[1], ONE - decay
        first, second = 1.0 - beta1 ** float(steps[0]), 1.0 - beta2 ** float(steps[0])
        part1, part2 = ONE - beta1, ONE - beta2
        scale = math.sqrt(second)
        rate, floor = F(lr * scale / first), F(eps * scale)
        for i in range(size):
            other[i] += part1 * (g[i] - other[i])
            square[i] += part2 * (g[i] * g[i] - square[i])
            x[i] = keep * x[i] - rate * other[i] / (math.sqrt(square[i]) + floor)
    else:
        part, kept = ONE - settings[0], settings[1]
        for i in range(size):
            square[i] += part * (g[i] * g[i] - square[i])
            other[i] = kept * other[i] + g[i] / (math.sqrt(square[i]) + eps)
            x[i] -= lr * other[i]


@kernel("void(f4[:,::1], f4[:,::1], f4[:,::1])")
def clip(gradient, limits, factors):
    """Clip the norm of each member's gradient to its limit.

    The limits are (P, 1). The factors (P, 1) are filled in.
    """
    for p in range(len(gradient)):
        factors[p, 0] = clip_member(gradient[p], limits[p, 0])


@kernel("void(b1[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], i8, f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])")
def optimize(active, vector, gradient, lr, form, steps, square, other, settings):
    """Take a step of an optimizer.

    Args:
        active: members to update, (P, 1).
        vector: parameters, (P, D).
        gradient: (P, D).
        lr: learning rates, (P, 1).
        form: ADAM or RMSPROP.
        steps: steps so far, (P, 1).
        square: means of squared gradients, (P, D).
        other: Adam's means of gradients or RMSprop's velocity, (P, D).
        settings: (P, 4): Adam's beta1 and beta2, or RMSprop's alpha and momentum; epsilon; decoupled weight decay.
    """
    for p in range(len(vector)):
        if active[p, 0]:
            rate, own = lr[p, 0], settings[p]
            step_member(form, vector[p], gradient[p], rate, rate * own[3], steps[p], square[p], other[p], own)
