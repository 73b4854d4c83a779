"""Kernels of gradient descent: optimizers, and whole gradient steps.

Vectors are (P, D), and only members with `active` or `moving` (P, 1) take a step.

`descend` takes all steps of an actor-critic in a pass over a batch of rollouts. Between short computations, Python
takes several times as long as the computations themselves. The members are taken one after the other, so that their
parameters and moments stay in the processor's caches.
"""

from __future__ import annotations

import math

from .decorators import inner, kernel
from .layers import ONE, F, dot
from .policies import differentiate_member, experience_of, picked, room_for, scratch_for
from .records import Descent, Experience, LossTerms, Pass, PolicyNetworks, Slope, UpdateRule

ADAM, RMSPROP, SGD = 0, 1, 2  # forms of optimizers; AdamW is Adam with a decay


@inner()
def clip_member(g, limit):
    """Clip the norm of a member's gradient; return the factor."""
    factor = limit / (F(math.sqrt(dot(g, g))) + F(1e-6))
    factor = ONE if factor > ONE else factor
    for i in range(len(g)):
        g[i] *= factor
    return factor


@inner(fastmath={"contract"})
def decayed_step(x, g, lr, decay, rule, p):
    """Take a step; Adam's starts from x multiplied by 1 - decay."""
    steps, square, other, settings = rule.steps[p], rule.square[p], rule.other[p], rule.settings[p]
    steps[0] += ONE
    eps, size = settings[2], len(x)
    if rule.form == ADAM:
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


@inner()
def plain_step(x, g, lr, rule, p):
    """Take a step of SGD, which torch's operations round alike."""
    velocity, momentum = rule.other[p], rule.settings[p, 1]
    rule.steps[p, 0] += ONE
    for i in range(len(x)):
        velocity[i] = momentum * velocity[i] + g[i]
        x[i] -= lr * velocity[i]


@inner()
def step_member(x, g, lr, rule, p):
    """Take member p's step, see `optimize`."""
    if rule.form == SGD:
        plain_step(x, g, lr, rule, p)
        return
    decayed_step(x, g, lr, lr * rule.settings[p, 3], rule, p)


@inner()
def descend_member(x, g, step, p):
    """Clip member p's gradient g, and take its step."""
    clipping = step.clipping
    clipping.factors[p, 0] = clip_member(g, clipping.limits[p, 0]) if clipping.active else ONE
    step_member(x, g, step.lr[p, 0], step.rule, p)


@kernel("f4[:,::1], f4[:,::1], f4[:,::1]")
def clip(gradient, limits, factors):
    """Clip the norm of each member's gradient to its limit.

    The limits are (P, 1). The factors (P, 1) are filled in.
    """
    for p in range(len(gradient)):
        factors[p, 0] = clip_member(gradient[p], limits[p, 0])


@kernel("b1[:,::1], f4[:,::1], f4[:,::1], f4[:,::1]", UpdateRule)
def optimize(active, vector, gradient, lr, rule):
    """Take a step of an optimizer.

    Args:
        active: members to update, (P, 1).
        vector: parameters, (P, D).
        gradient: (P, D).
        lr: learning rates, (P, 1).
        rule: optimizer.
    """
    for p in range(len(vector)):
        if active[p, 0]:
            step_member(vector[p], gradient[p], lr[p, 0], rule, p)


@kernel(Pass, Experience, PolicyNetworks, LossTerms, Slope, Descent)
def descend(course, data, networks, terms, slope, step):
    """Take a gradient step on each minibatch of a batch.

    The data are all rows of the batch. Members that stop take no step on this minibatch, which is their last one. In
    the first pass over a batch, members that are not to be updated have the metrics of the first minibatch. Metrics,
    gradient and factors are those of a member's last minibatch.
    """
    order, moving, size = course.order, course.moving, course.order.shape[1] // course.parts
    clipping = step.clipping
    scratch, room = scratch_for(size, networks), room_for(size, data)
    for p in range(len(order)):
        if not (course.first or moving[p, 0]):
            continue
        vector, g, metrics, of_all = networks.vector[p], slope.gradient[p], slope.metrics[p], experience_of(data, p)
        for part in range(course.parts):
            rows = picked(of_all, order[p, part * size : (part + 1) * size], room, networks.gaussian)
            differentiate_member(rows, vector, g, networks, terms, terms.coefficients[p], metrics, scratch)
            clipping.factors[p, 0] = clip_member(g, clipping.limits[p, 0]) if clipping.active else ONE
            if course.stops and not metrics[2] <= F(1.5) * course.target_kl[p, 0]:
                moving[p, 0] = False
            if not moving[p, 0]:
                break
            step_member(vector, g, step.lr[p, 0], step.rule, p)
