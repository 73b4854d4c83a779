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
from .layers import ONE, F, dot
from .off_policy import clipped, follow_vector, huber_rows, n_step_rows
from .perceptrons import LEARN, backward_member, forward_member, number_of_units
from .policies import differentiate_member, scratch_for

ADAM, RMSPROP = 0, 1  # forms of optimizers; AdamW is Adam with a decay
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
def step_member(form, x, g, lr, decay, steps, square, other, settings):
    """Take a member's step, see `optimize`.

    Adam's starts from x multiplied by 1 - decay.
    """
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


@inner()
def take_rows(x, rows, out):
    """Fill in rows of a matrix."""
    for r in range(len(rows)):
        row, to = x[rows[r]], out[r]
        for j in range(len(to)):
            to[j] = row[j]


@inner()
def take(x, rows, out):
    """Fill in numbers of a vector."""
    for r in range(len(rows)):
        out[r] = x[rows[r]]


@kernel(
    "void(i8[:,::1], i8, b1[:,::1], b1, b1, f4[:,::1],"
    "f4[:,:,::1], f4[:,::1], f4[:,::1], i8[::1], i8[::1], i8[::1], i8[:,:,::1], f4[:,:,::1], f4[:,::1],"
    "f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], i8[::1], f4[:,::1],"
    "b1, f4[:,::1], f4[:,::1], f4[:,::1], i8, f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])"
)
def descend(
    order,
    parts,
    moving,
    first,
    stops,
    target_kl,
    obs,
    vector,
    gradient,
    layout,
    actor_sizes,
    critic_sizes,
    choices,
    numbers,
    old_log_probs,
    advantages,
    returns,
    old_values,
    coefficients,
    options,
    metrics,
    clips,
    limits,
    factors,
    lr,
    form,
    steps,
    square,
    other,
    settings,
):
    """Take a gradient step on each minibatch of a batch.

    The rows come in a random order (P, B) and are cut into `parts` of one size. The arguments from `obs` to `metrics`
    are those of `policies.differentiate`, but with all rows of the batch; those from `lr` on are those of `optimize`.
    Metrics, gradient and factors are those of a member's last minibatch.

    Members that are `moving` (P, 1) are updated. If target_kl (P, 1) `stops` them, those whose approx_kl is above 1.5
    times target_kl are taken out; they take no step on this minibatch, which is their last one. In the `first` pass
    over a batch, members that are not to be updated have the metrics of the first minibatch.

    With `clips`, the norms of gradients are clipped to `limits` (P, 1). The factors (P, 1) are filled in.
    """
    members, inputs, size = len(order), obs.shape[2], order.shape[1] // parts
    scratch = scratch_for(size, layout, actor_sizes, critic_sizes)
    x = np.empty((size, inputs), F)
    chosen, drawn = np.empty((size, choices.shape[2]), np.int64), np.empty((size, numbers.shape[2]), F)
    columns = np.empty((4, size), F)
    for p in range(members):
        if not (first or moving[p, 0]):
            continue
        own, g = settings[p], gradient[p]
        for part in range(parts):
            rows = order[p, part * size : (part + 1) * size]
            take_rows(obs[p], rows, x)
            if layout[4]:
                take_rows(numbers[p], rows, drawn)
            else:
                take_rows(choices[p], rows, chosen)
            take(old_log_probs[p], rows, columns[0])
            take(advantages[p], rows, columns[1])
            take(returns[p], rows, columns[2])
            take(old_values[p], rows, columns[3])
            differentiate_member(
                x,
                vector[p],
                g,
                layout,
                actor_sizes,
                critic_sizes,
                chosen,
                drawn,
                columns[0],
                columns[1],
                columns[2],
                columns[3],
                coefficients[p],
                options,
                metrics[p],
                scratch,
            )
            factors[p, 0] = clip_member(g, limits[p, 0]) if clips else ONE
            if stops and not metrics[p, 2] <= F(1.5) * target_kl[p, 0]:
                moving[p, 0] = False
            if not moving[p, 0]:
                break
            rate = lr[p, 0]
            step_member(form, vector[p], g, rate, rate * own[3], steps[p], square[p], other[p], own)


@inner()
def standardize(x, mean, scale):
    """Standardize rows, clipped to ±10, as `ObservationNormalizer` does."""
    for r in range(len(x)):
        for j in range(len(mean)):
            x[r, j] = clipped((x[r, j] - mean[j]) * scale[j], TEN)


@inner()
def largest(x):
    """Return the place of the first maximum; NaN counts as largest."""
    best = 0
    for j in range(1, len(x)):
        if x[j] > x[best] or (x[j] != x[j] and x[best] == x[best]):
            best = j
    return best


@kernel(
    "void(i8[:,::1], b1, f4[:,::1], b1, f4[:,::1], f4[:,::1], f4[:,::1], b1[:,::1],"
    "f4[:,:,::1], i8[:,::1], i8, i8, f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], i8[::1], i8, b1, f4,"
    "f4[::1], f4[:,::1], f4[:,::1], b1, f4[:,::1], f4[:,::1], f4[:,::1],"
    "i8, f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])"
)
def descend_q(
    rows,
    weighted,
    weights,
    standardized,
    mean,
    scale,
    lr,
    due,
    numbers,
    columns,
    n_step,
    envs,
    gamma,
    vector,
    target,
    gradient,
    sizes,
    kind,
    double,
    limit,
    losses,
    errors,
    values,
    clips,
    limits,
    factors,
    tau,
    form,
    steps,
    square,
    other,
    settings,
):
    """Take a gradient step of deep Q-learning.

    `DQNLearner.targets` and `fused.losses.huber` define what is computed, on the n-step transitions that begin at rows
    (P, B) of a replay buffer. The `numbers` of stored transitions are
    (P, rows, numbers in each), with `columns` as in `off_policy`, and `envs` rows lie between two steps of one
    environment. Members' numbers, as `gamma` and `tau`, are (P, 1).

    If observations are `standardized`, mean and scale are (P, inputs). If losses are `weighted`, weights are (P, B).
    The networks have layers of these `sizes` with an activation of this `kind`, and parameters `vector` (P, D), or
    `target` (P, D), which moves by the fraction tau where it is `due`. With `double`, the online network chooses the
    next actions. Losses are linear in errors beyond the limit.

    Filled in are the gradient (P, D), mean losses (P,), errors and the largest action values `values` (P, B each). With
    `clips`, the norms of gradients are clipped to `limits` (P, 1), and the factors (P, 1) are filled in. The arguments
    from `form` on are those of `optimize`.
    """
    members, count, inputs, actions = len(rows), rows.shape[1], sizes[0], sizes[-1]
    x, following, action = np.empty((count, inputs), F), np.empty((count, inputs), F), np.empty((count, 1), F)
    reward, discount, choices = np.empty(count, F), np.empty(count, F), np.empty(count, np.int64)
    q, online, slopes = np.empty((count, actions), F), np.empty((count, actions), F), np.empty((count, actions), F)
    room = count * number_of_units(sizes)
    units, spare, to_units = np.empty(room, F), np.empty(room, F), np.empty(room, F)
    for p in range(members):
        theta, g = vector[p], gradient[p]
        n_step_rows(numbers[p], rows[p], gamma[p, 0], n_step, envs, columns, x, following, action, reward, discount)
        if standardized:
            standardize(x, mean[p], scale[p])
            standardize(following, mean[p], scale[p])
        forward_member(following, target[p], sizes, kind, spare, q)
        if double:
            forward_member(following, theta, sizes, kind, spare, online)
        for r in range(count):
            reward[r] += discount[r] * q[r, largest(online[r] if double else q[r])]
            choices[r] = np.int64(action[r, 0])
        forward_member(x, theta, sizes, kind, units, q)
        for r in range(count):
            values[p, r] = q[r, largest(q[r])]
        weight = weights[p] if weighted else reward  # without weights, none are read
        losses[p] = huber_rows(q, choices, reward, weight, weighted, limit, errors[p], slopes)
        backward_member(slopes, x, theta, sizes, kind, units, count, to_units, g, LEARN)
        factors[p, 0] = clip_member(g, limits[p, 0]) if clips else ONE
        rate, own = lr[p, 0], settings[p]
        step_member(form, theta, g, rate, rate * own[3], steps[p], square[p], other[p], own)
        if due[p, 0]:
            follow_vector(target[p], theta, tau[p, 0])
