"""Kernels of gradient descent: optimizers, and whole gradient steps.

Vectors are (P, D), and only members with `active` or `moving` (P, 1) take a step.

`descend` takes all steps of an actor-critic in a pass over a batch of rollouts, `descend_q` takes one step of deep
Q-learning. Between short computations, Python takes several times as long as the computations themselves. The members
are taken one after the other, so that their parameters and moments stay in the processor's caches.
"""

from __future__ import annotations

import math

import numpy as np

from .decorators import inner, kernel
from .layers import ONE, ZERO, F, dot
from .off_policy import (
    clipped,
    follow_vector,
    huber_rows,
    n_step_rows,
    soft_value_rows,
    soft_value_slope_rows,
    squash_rows,
    squash_slope_rows,
    twins_rows,
)
from .perceptrons import CONSTANT, LEARN, backward_member, forward_member, join_rows, number_of_units, to_inputs_member
from .policies import differentiate_member, experience_of, picked, room_for, scratch_for
from .records import (
    Box,
    Descent,
    Draw,
    Experience,
    LossTerms,
    Pass,
    PolicyNetworks,
    QErrors,
    QNetworks,
    Scaling,
    Slope,
    SoftErrors,
    SoftNetworks,
    Transitions,
    UpdateRule,
)

ADAM, RMSPROP, SGD = 0, 1, 2  # forms of optimizers; AdamW is Adam with a decay
TEN = F(10.0)


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
        own, g, metrics, of_all = networks.vector[p], slope.gradient[p], slope.metrics[p], experience_of(data, p)
        for part in range(course.parts):
            rows = picked(of_all, order[p, part * size : (part + 1) * size], room, networks.gaussian)
            differentiate_member(rows, own, g, networks, terms, terms.coefficients[p], metrics, scratch)
            clipping.factors[p, 0] = clip_member(g, clipping.limits[p, 0]) if clipping.active else ONE
            if course.stops and not metrics[2] <= F(1.5) * course.target_kl[p, 0]:
                moving[p, 0] = False
            if not moving[p, 0]:
                break
            step_member(own, g, step.lr[p, 0], step.rule, p)


@inner()
def standardize(x, mean, scale):
    """Standardize rows, clipped to ±10, as `ObservationNormalizer` does."""
    for r in range(len(x)):
        for j in range(len(mean)):
            x[r, j] = clipped((x[r, j] - mean[j]) * scale[j], TEN)


@inner()
def gather(draw, scaling, table, p, obs, following, action, reward, discount):
    """Fill in member p's n-step transitions that begin at the drawn rows."""
    rows, inputs = draw.rows[p], table.columns[0, 1] - table.columns[0, 0]
    batch = (obs, following, action, reward, discount)
    n_step_rows(table.numbers[p], rows, table.gamma[p, 0], table.n_step, table.envs, table.columns, *batch)
    if scaling.active:
        standardize(obs[:, :inputs], scaling.mean[p], scaling.factor[p])
        standardize(following[:, :inputs], scaling.mean[p], scaling.factor[p])


@inner()
def largest(x):
    """Return the place of the first maximum; NaN counts as largest."""
    best = 0
    for j in range(1, len(x)):
        if x[j] > x[best] or (x[j] != x[j] and x[best] == x[best]):
            best = j
    return best


@kernel(Draw, Scaling, Transitions, QNetworks, "f4", QErrors, Descent, "f4[:,::1], b1[:,::1]")
def descend_q(draw, scaling, table, networks, limit, result, step, tau, due):
    """Take a gradient step of deep Q-learning.

    `DQNLearner.targets` and `fused.losses.huber` define what is computed, on the n-step transitions that begin at the
    drawn rows. Losses are linear in errors beyond the limit. The targets move by the fractions tau (P, 1) where they
    are `due` (P, 1).
    """
    sizes, kind = networks.sizes, networks.activation
    count, inputs, actions = draw.rows.shape[1], sizes[0], sizes[-1]
    x, following, action = np.empty((count, inputs), F), np.empty((count, inputs), F), np.empty((count, 1), F)
    reward, discount, choices = np.empty(count, F), np.empty(count, F), np.empty(count, np.int64)
    q, online, slopes = np.empty((count, actions), F), np.empty((count, actions), F), np.empty((count, actions), F)
    room = count * number_of_units(sizes)
    units, spare, to_units = np.empty(room, F), np.empty(room, F), np.empty(room, F)
    for p in range(len(draw.rows)):
        theta, target, g = networks.vector[p], networks.target[p], networks.gradient[p]
        gather(draw, scaling, table, p, x, following, action, reward, discount)
        forward_member(following, target, sizes, kind, spare, q)
        if networks.double:
            forward_member(following, theta, sizes, kind, spare, online)
        for r in range(count):
            reward[r] += discount[r] * q[r, largest(online[r] if networks.double else q[r])]
            choices[r] = np.int64(action[r, 0])
        forward_member(x, theta, sizes, kind, units, q)
        for r in range(count):
            result.values[p, r] = q[r, largest(q[r])]
        weights = draw.weights[p] if draw.weighted else reward  # without weights, none are read
        result.losses[p] = huber_rows(q, choices, reward, weights, draw.weighted, limit, result.errors[p], slopes)
        backward_member(slopes, x, theta, sizes, kind, units, count, to_units, g, LEARN)
        descend_member(theta, g, step, p)
        if due[p, 0]:
            follow_vector(target, theta, tau[p, 0])


@kernel(
    *(Draw, Scaling, Transitions, SoftNetworks, Box, "f4", SoftErrors), *("f4[:,:,::1], f4[:,::1]", Descent, Descent)
)
def descend_sac(draw, scaling, table, networks, box, limit, result, noise, alpha, critic_step, actor_step):
    """Take a gradient step of soft actor-critics in a Box.

    First the critics take it, then the actor. `SACLearner` and `fused.losses` define what is computed. The noise is
    (P, 2B, k), for a batch and its next observations, and α is (P, 1). Critics' losses are linear in errors beyond the
    limit.
    """
    pi_sizes, q_sizes, kind, parameters = (
        networks.actor_sizes,
        networks.critic_sizes,
        networks.activation,
        networks.critics,
    )
    members, count = draw.rows.shape
    inputs, k, room = pi_sizes[0], len(box.middle), count * number_of_units(pi_sizes)
    obs, following = np.zeros((count, inputs), F), np.zeros((count, inputs), F)  # the padding of a lone number is 0
    action, reward, discount = np.empty((count, k), F), np.empty(count, F), np.empty(count, F)
    out, next_out, to_out = np.empty((count, 2 * k), F), np.empty((count, 2 * k), F), np.empty((count, 2 * k), F)
    c, next_c, to_c = np.empty((count, k), F), np.empty((count, k), F), np.empty((count, k), F)
    spread, next_entropies, to_entropies = np.empty((count, k), F), np.empty((count, 1), F), np.empty((count, 1), F)
    units, to_units = np.empty(room, F), np.empty(room, F)
    room = count * number_of_units(q_sizes)
    x, q_units, to_q_units = np.empty((count, q_sizes[0]), F), np.empty((2, room), F), np.empty(room, F)
    q, to_q, value = np.empty((2, count, 1), F), np.empty((2, count, 1), F), np.empty(count, F)
    ones = np.ones(count, F)
    for p in range(members):
        theta, g = networks.actor[p], networks.actor_gradient[p]
        gather(draw, scaling, table, p, obs, following, action, reward, discount)
        forward_member(following, theta, pi_sizes, kind, units, next_out)
        squash_rows(next_out, noise[p], count, next_c, spread, next_entropies)
        forward_member(obs, theta, pi_sizes, kind, units, out)
        squash_rows(out, noise[p], 0, c, spread, result.entropies[p])

        join_rows(following, next_c, x)
        for i in range(2):
            forward_member(x, parameters[2 * (members + p) + i], q_sizes, kind, q_units[i], q[i])
        soft_value_rows(q, next_entropies, alpha[p], ONE, value)
        for r in range(count):
            reward[r] += discount[r] * value[r]
            for j in range(k):
                action[r, j] = (action[r, j] - box.middle[j]) / box.half[j]
        join_rows(obs, action, x)
        for i in range(2):
            forward_member(x, parameters[2 * p + i], q_sizes, kind, q_units[i], q[i])
            for r in range(count):
                result.values[p, i, r] = q[i, r, 0]
        losses, errors = result.critic_losses[p], result.errors[p]
        weights = draw.weights[p] if draw.weighted else reward  # without weights, none are read
        twins_rows(q, reward, weights, draw.weighted, limit, count, losses, errors, to_q[:, :, 0])
        size = networks.critics.shape[1]
        for i in range(2):
            to_theta = networks.critic_gradient[p, i * size : (i + 1) * size]
            critic = parameters[2 * p + i]
            backward_member(to_q[i], x, critic, q_sizes, kind, q_units[i], count, to_q_units, to_theta, LEARN)
        descend_member(networks.critic_vector[p], networks.critic_gradient[p], critic_step, p)

        join_rows(obs, c, x)
        for i in range(2):
            forward_member(x, parameters[2 * p + i], q_sizes, kind, q_units[i], q[i])
        soft_value_rows(q, result.entropies[p], alpha[p], -ONE, result.actor_losses[p])
        soft_value_slope_rows(ones, q, alpha[p], -ONE, to_q, to_entropies)
        to_c[:] = ZERO
        for i in range(2):
            critic = parameters[2 * p + i]
            backward_member(to_q[i], x, critic, q_sizes, kind, q_units[i], count, to_q_units, critic, CONSTANT)
            to_inputs_member(to_q_units, critic, q_sizes, inputs, to_c)
        squash_slope_rows(to_c, to_entropies, c, out, spread, ones, False, count, to_out)
        backward_member(to_out, obs, theta, pi_sizes, kind, units, count, to_units, g, LEARN)
        descend_member(theta, g, actor_step, p)
