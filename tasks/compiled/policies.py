"""Kernels of policies and their losses.

Actions are one choice, in `choices` (P, B, 1), or independent normal numbers, in `numbers` (P, B, n).

`records` explains the arguments.
"""

from __future__ import annotations

import math

import numpy as np

from .decorators import inner, kernel
from .layers import HALF, ONE, SILU, ZERO, F, back, dot, put_weights, weights_of
from .perceptrons import LEARN, head_of, hidden, number_of_units, perceptron, put, rows_of, to_hidden
from .records import Actions, Experience, LossTerms, PolicyNetworks, Slope

HALF_LOG_2_PI = F(0.5 * math.log(2 * math.pi))
LARGEST = F(np.finfo(np.float32).max)


@inner()
def log_softmax(x, probs):
    """Normalize logits x in place; fill in probabilities, return their entropy."""
    most = x[0]
    for j in range(1, len(x)):
        most = x[j] if x[j] > most else most
    total = ZERO
    for j in range(len(x)):
        total += F(math.exp(x[j] - most))
    shift, entropy = F(math.log(total)) + most, ZERO
    for j in range(len(x)):
        x[j] -= shift
        probs[j] = F(math.exp(x[j]))
        entropy -= probs[j] * x[j]
    return entropy


@inner()
def log_normal(means, log_std, std, numbers, z):
    """Return log π; fill in standardized deviations z."""
    log_prob = ZERO
    for j in range(len(z)):
        z[j] = (numbers[j] - means[j]) / std[j]
        log_prob += -HALF * z[j] * z[j] - log_std[j] - HALF_LOG_2_PI
    return log_prob


@inner()
def deviations(vector, networks, n):
    """Return a member's log standard deviations and standard deviations, (n,)."""
    log_std = vector[networks.log_std : networks.log_std + n] if networks.gaussian else np.zeros(n, F)
    return log_std, np.exp(log_std)


@inner()
def standardizer(x, wanted):
    """Return the mean and factor that standardize a row."""
    if not wanted:
        return ZERO, ONE
    total = squares = 0.0
    for i in range(len(x)):
        total += x[i]
    center = total / len(x)
    for i in range(len(x)):
        squares += (x[i] - center) ** 2
    return F(center), F(1.0 / (math.sqrt(squares / len(x)) + 1e-8))


@inner()
def surrogate(log_prob, old, advantage, clip, ratios):
    """Return a row's policy loss, its slope, approx_kl and clip_fraction."""
    if not ratios:
        return -log_prob * advantage, -advantage, ZERO, ZERO
    log_ratio = log_prob - old
    ratio = F(math.exp(log_ratio))
    clipped = min(max(ratio, ONE - clip), ONE + clip)
    free, kept = ratio * advantage, clipped * advantage
    kl, far = ratio - ONE - log_ratio, ONE if abs(ratio - ONE) > clip else ZERO
    if kept < free:
        return -kept, ZERO, kl, far
    return -free, -free, kl, far


@inner()
def half_loss(error, huber):
    """Return half the squared error, or Huber's loss, and its slope."""
    if huber and abs(error) > ONE:
        return abs(error) - HALF, ONE if error > ZERO else -ONE
    return HALF * error * error, error


@inner()
def value_loss(value, old, target, clip, clipping, huber):
    """Return a row's value loss and its slope.

    `clipping` is 0 for none, 1 for PPO's and 2 for PPO2's.
    """
    loss, to = half_loss(value - target, huber)
    if clipping == 0 or abs(value - old) <= clip:
        return loss, to
    near, _ = half_loss(old + (clip if value > old else -clip) - target, huber)
    if clipping == 1 or near > loss:
        return near, ZERO
    return loss, to


@inner()
def arrays_for(sizes, rows, activation):
    """Return arrays for a member's hidden units, `at` and slopes."""
    n = rows * number_of_units(sizes)
    units, slopes = np.empty(n, F), np.empty(n, F)
    return units, np.empty(n, F) if activation == SILU else units, slopes


@inner(fastmath={"contract"})
def to_parameters(x, head_slopes, w, vector, gradient, start, sizes, activation, units, at, slopes):
    """Fill in one network's gradient by its outputs' slopes (B, outputs).

    The network's inputs are x, its last layer's weights w (outputs, units), and its arrays those of `arrays_for`.
    """
    rows, size, outputs = len(x), sizes[-2], sizes[-1]
    last, head = len(units) - rows * size, head_of(sizes, start)
    h, h_at, to = rows_of(units, last, rows, size), rows_of(at, last, rows, size), rows_of(slopes, last, rows, size)
    to_w, to_b, to_before = np.zeros((outputs, size), F), np.zeros(outputs, F), np.zeros(size, F)
    back(head_slopes, w, h, h_at, to, to_w, to_b, to_before, activation)
    put_weights(gradient, head, to_w, to_b)
    put(to_before, gradient, head - size)
    to_hidden(x, vector, gradient, start, sizes, activation, units, at, rows, slopes, LEARN)


@inner()
def scratch_for(rows, networks):
    """Return arrays in which `differentiate_member` computes."""
    n, activation = networks.actor_sizes[-1], networks.activation
    of_rows = np.empty((rows, n), F), np.empty((rows, 1), F)
    of_outputs = np.empty(n, F), np.empty(n, F), np.empty(n, F)
    return (
        of_rows,
        of_outputs,
        arrays_for(networks.actor_sizes, rows, activation),
        arrays_for(networks.critic_sizes, rows, activation),
    )


@inner()
def first_of(scratch, rows, networks):
    """Return the part of `scratch_for` that belongs to the first rows."""
    (slopes, value_slopes), of_outputs, actor, critic = scratch
    n, m = rows * number_of_units(networks.actor_sizes), rows * number_of_units(networks.critic_sizes)
    of_actor, of_critic = (actor[0][:n], actor[1][:n], actor[2][:n]), (critic[0][:m], critic[1][:m], critic[2][:m])
    return (slopes[:rows], value_slopes[:rows]), of_outputs, of_actor, of_critic


@inner()
def differentiate_member(data, vector, g, networks, terms, coefficients, metrics, scratch):
    """Fill in a member's gradient g and metrics, see `differentiate`."""
    obs, actor_sizes, critic_sizes = data.obs, networks.actor_sizes, networks.critic_sizes
    rows, n = len(obs), actor_sizes[-1]
    if rows == 0:
        g[:], metrics[:] = ZERO, ZERO
        return
    actor, critic, activation, gaussian = networks.actor, networks.critic, networks.activation, networks.gaussian
    share = ONE / F(rows)
    (slopes, value_slopes), (out, z, to_std), of_actor, of_critic = first_of(scratch, rows, networks)
    h_actor = hidden(obs, vector, actor, actor_sizes, activation, of_actor[0], of_actor[1])
    h_critic = hidden(obs, vector, critic, critic_sizes, activation, of_critic[0], of_critic[1])
    wa, ba = weights_of(vector, head_of(actor_sizes, actor), actor_sizes[-2], n)
    wc, bc = weights_of(vector, head_of(critic_sizes, critic), critic_sizes[-2], 1)
    log_std, std = deviations(vector, networks, n)
    to_std[:] = ZERO
    clip, vf, ent, clip_value = coefficients
    center, factor = standardizer(data.advantages, terms.standardized)
    normal_entropy = ZERO
    for j in range(n):
        normal_entropy += log_std[j] + HALF_LOG_2_PI + HALF
    sum_loss = sum_entropy = sum_kl = sum_far = sum_value = 0.0
    for r in range(rows):
        for j in range(n):
            out[j] = dot(h_actor[r], wa[j]) + ba[j]
        if gaussian:
            log_prob, entropy = log_normal(out, log_std, std, data.numbers[r], z), normal_entropy
        else:
            entropy = log_softmax(out, z)
            log_prob = out[data.choices[r, 0]]
        advantage = (data.advantages[r] - center) * factor
        loss, to, kl, far = surrogate(log_prob, data.log_probs[r], advantage, clip, terms.ratios)
        sum_loss += loss
        sum_entropy += entropy
        sum_kl += kl
        sum_far += far
        to *= share
        for j in range(n):
            if gaussian:
                slopes[r, j] = to * z[j] / std[j]
                to_std[j] += to * (z[j] * z[j] - ONE)
            else:
                slopes[r, j] = ent * share * z[j] * (out[j] + entropy) - to * z[j]
        if not gaussian:
            slopes[r, data.choices[r, 0]] += to
        value = dot(h_critic[r], wc[0]) + bc[0]
        loss, to = value_loss(value, data.values[r], data.returns[r], clip_value, terms.clipping, terms.huber)
        sum_value += loss
        value_slopes[r, 0] = vf * to * share
    to_parameters(obs, slopes, wa, vector, g, actor, actor_sizes, activation, of_actor[0], of_actor[1], of_actor[2])
    to_parameters(
        obs, value_slopes, wc, vector, g, critic, critic_sizes, activation, of_critic[0], of_critic[1], of_critic[2]
    )
    if gaussian:
        for j in range(n):
            g[networks.log_std + j] = to_std[j] - ent
    metrics[0] = sum_loss / rows
    metrics[1] = sum_entropy / rows
    metrics[2] = sum_kl / rows
    metrics[3] = sum_far / rows
    metrics[4] = sum_value / rows


@inner()
def experience_of(data, p):
    """Return one member's rows."""
    return Experience(
        data.obs[p],
        data.choices[p],
        data.numbers[p],
        data.log_probs[p],
        data.advantages[p],
        data.returns[p],
        data.values[p],
        data.weighted,
        data.weights[p],
    )


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


@inner()
def room_for(rows, data):
    """Return arrays for rows of a member, and for their indices."""
    obs, choices = np.empty((rows, data.obs.shape[2]), F), np.empty((rows, data.choices.shape[2]), np.int64)
    numbers, rest = np.empty((rows, data.numbers.shape[2]), F), np.empty((5, rows), F)
    room = Experience(obs, choices, numbers, rest[0], rest[1], rest[2], rest[3], data.weighted, rest[4])
    return room, np.empty(rows, np.int64)


@inner()
def picked(data, rows, room, gaussian):
    """Return those of a member's rows that count, in arrays of `room_for`."""
    out, counted = room
    count = len(rows)
    if data.weighted:
        count = 0
        for r in range(len(rows)):
            if data.weights[rows[r]] > ZERO:
                counted[count] = rows[r]
                count += 1
        rows = counted[:count]
    take_rows(data.obs, rows, out.obs)
    if gaussian:
        take_rows(data.numbers, rows, out.numbers)
    else:
        take_rows(data.choices, rows, out.choices)
    take(data.log_probs, rows, out.log_probs)
    take(data.advantages, rows, out.advantages)
    take(data.returns, rows, out.returns)
    take(data.values, rows, out.values)
    return Experience(
        out.obs[:count],
        out.choices[:count],
        out.numbers[:count],
        out.log_probs[:count],
        out.advantages[:count],
        out.returns[:count],
        out.values[:count],
        out.weighted,
        out.weights[:count],
    )


@kernel(Experience, PolicyNetworks, LossTerms, Slope)
def differentiate(data, networks, terms, slope):
    """Fill in the gradient of a minibatch's loss, and its metrics.

    The metrics are policy loss, entropy, approx_kl, clip_fraction and value loss.
    """
    size = data.obs.shape[1]
    scratch, every, room = scratch_for(size, networks), np.arange(size), room_for(size if data.weighted else 0, data)
    for p in range(len(data.obs)):
        vector, g, metrics, rows = networks.vector[p], slope.gradient[p], slope.metrics[p], experience_of(data, p)
        if data.weighted:
            rows = picked(rows, every, room, networks.gaussian)
        differentiate_member(rows, vector, g, networks, terms, terms.coefficients[p], metrics, scratch)


@kernel("f4[:,:,::1]", PolicyNetworks, Actions, "f4[:,::1]")
def log_probs(obs, networks, actions, result):
    """Fill in log π (P, B) for observations (P, B, inputs)."""
    members, rows, _ = obs.shape
    start, sizes = networks.actor, networks.actor_sizes
    n = sizes[-1]
    out, z = np.empty(n, F), np.empty(n, F)
    for p in range(members):
        vector = networks.vector[p]
        h = perceptron(obs[p], vector, start, sizes, networks.activation)
        w, b = weights_of(vector, head_of(sizes, start), sizes[-2], n)
        log_std, std = deviations(vector, networks, n)
        for r in range(rows):
            for j in range(n):
                out[j] = dot(h[r], w[j]) + b[j]
            if networks.gaussian:
                result[p, r] = log_normal(out, log_std, std, actions.numbers[p, r], z)
            else:
                log_softmax(out, z)
                result[p, r] = out[actions.choices[p, r, 0]]


@kernel("f4[:,:,::1]", PolicyNetworks, "f4[:,::1]")
def values(obs, networks, result):
    """Fill in v(s), (P, B), of observations (P, B, inputs)."""
    members, rows, _ = obs.shape
    start, sizes = networks.critic, networks.critic_sizes
    for p in range(members):
        vector = networks.vector[p]
        h = perceptron(obs[p], vector, start, sizes, networks.activation)
        w, b = weights_of(vector, head_of(sizes, start), sizes[-2], 1)
        for r in range(rows):
            result[p, r] = dot(h[r], w[0]) + b[0]


@inner(fastmath={"contract"})
def choose(r, out, noise, std, choices, numbers, gaussian):
    """Fill in the action of row r, from outputs and noise."""
    if gaussian:
        for j in range(len(out)):
            x = out[j] + std[j] * noise[r, j]
            x = ZERO if x != x else x
            numbers[r, j] = min(max(x, -LARGEST), LARGEST)
    else:
        best = 0
        for j in range(1, len(out)):
            best = j if out[j] + noise[r, j] > out[best] + noise[r, best] else best
        choices[r, 0] = best


@inner(fastmath={"contract"})
def outputs(r, h, w, b, out):
    """Fill in the outputs of row r from the last hidden units."""
    for j in range(len(out)):
        out[j] = dot(h[r], w[j]) + b[j]


@kernel("f4[:,:,::1]", PolicyNetworks, "f4[:,:,::1]", Actions)
def act(obs, networks, noise, actions):
    """Fill in actions for observations (P, N, inputs)."""
    members, rows = obs.shape[:2]
    start, sizes = networks.actor, networks.actor_sizes
    n = sizes[-1]
    out = np.empty(n, F)
    for p in range(members):
        vector = networks.vector[p]
        w, b = weights_of(vector, head_of(sizes, start), sizes[-2], n)
        _, std = deviations(vector, networks, n)
        h = perceptron(obs[p], vector, start, sizes, networks.activation)
        drawn, choices, numbers = noise[p], actions.choices[p], actions.numbers[p]
        for r in range(rows):
            outputs(r, h, w, b, out)
            choose(r, out, drawn, std, choices, numbers, networks.gaussian)
