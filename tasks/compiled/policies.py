"""Kernels of policies and their losses.

Actions are one choice, in `choices` (P, B, 1), or independent normal numbers, in `numbers` (P, B, n).

`layout` describes a policy's parameter vector: the starts of the actor's and the critic's last layers, of the biases
before these layers, and of the log standard deviations; then the activation, whether actions are numbers, and the
number of the actor's outputs.
"""

from __future__ import annotations

import math

import numpy as np

from .layers import HALF, ONE, ZERO, F, back, dot, inner, kernel, perceptron, put_weights, weights_of

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
def deviations(vector, layout):
    """Return a member's log standard deviations and standard deviations."""
    log_std = vector[layout[4] : layout[4] + layout[7]] if layout[6] else np.zeros(layout[7], F)
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


@kernel(
    "void(f4[:,:,::1], f4[:,:,::1], f4[:,:,::1], f4[:,:,::1], f4[:,:,::1], f4[:,:,::1], f4[:,::1],"
    "f4[:,::1], i8[::1], i8[:,:,::1], f4[:,:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], i8[::1],"
    "f4[:,::1])"
)
def differentiate(
    of_actor,
    of_critic,
    at_actor,
    at_critic,
    to_actor,
    to_critic,
    vector,
    gradient,
    layout,
    choices,
    numbers,
    old_log_probs,
    advantages,
    returns,
    old_values,
    coefficients,
    options,
    metrics,
):
    """Differentiate the loss of a minibatch in the last layers.

    From the last hidden units `of_...` (P, B, units) and the arrays `at_...` of `activate`, compute the slopes
    `to_...` before the activation, and the gradient in all parameters after it.

    - `gradient` (P, D) gets the gradient in the biases before the activation and all later parameters.
    - `old_log_probs`, `advantages`, `returns` and `old_values` are (P, B).
    - `coefficients` (P, 4) are the clip range of ratios, the coefficients of value loss and entropy, and the clip range
      of values.
    - `options` are whether to standardize advantages, whether to use ratios, the form of value clipping, and whether
      the critic's loss is Huber's.
    - `metrics` (P, 5) get policy loss, entropy, approx_kl, clip_fraction and value loss.
    """
    members, rows, units = of_actor.shape
    units_of_critic = of_critic.shape[2]
    actor, critic, actor_biases, critic_biases, std_at, kind, gaussian, n = layout
    standardized, ratios, clipping, huber = options
    share = ONE / F(rows)
    out, z, slopes, value_slopes = np.empty(n, F), np.empty(n, F), np.empty((rows, n), F), np.empty((rows, 1), F)
    for p in range(members):
        wa, ba = weights_of(vector[p], actor, units, n)
        wc, bc = weights_of(vector[p], critic, units_of_critic, 1)
        log_std, std = deviations(vector[p], layout)
        to_wa, to_ba, to_ha, to_std = np.zeros((n, units), F), np.zeros(n, F), np.zeros(units, F), np.zeros(n, F)
        to_wc, to_bc, to_hc = np.zeros((1, units_of_critic), F), np.zeros(1, F), np.zeros(units_of_critic, F)
        clip, vf, ent, clip_value = coefficients[p]
        center, factor = standardizer(advantages[p], standardized)
        normal_entropy = ZERO
        for j in range(n):
            normal_entropy += log_std[j] + HALF_LOG_2_PI + HALF
        sum_loss = sum_entropy = sum_kl = sum_far = sum_value = 0.0
        for r in range(rows):
            for j in range(n):
                out[j] = dot(of_actor[p, r], wa[j]) + ba[j]
            if gaussian:
                log_prob, entropy = log_normal(out, log_std, std, numbers[p, r], z), normal_entropy
            else:
                entropy = log_softmax(out, z)
                log_prob = out[choices[p, r, 0]]
            advantage = (advantages[p, r] - center) * factor
            loss, to, kl, far = surrogate(log_prob, old_log_probs[p, r], advantage, clip, ratios)
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
                slopes[r, choices[p, r, 0]] += to
            value = dot(of_critic[p, r], wc[0]) + bc[0]
            loss, to = value_loss(value, old_values[p, r], returns[p, r], clip_value, clipping, huber)
            sum_value += loss
            value_slopes[r, 0] = vf * to * share
        back(slopes, wa, of_actor[p], at_actor[p], to_actor[p], to_wa, to_ba, to_ha, kind)
        back(value_slopes, wc, of_critic[p], at_critic[p], to_critic[p], to_wc, to_bc, to_hc, kind)
        g = gradient[p]
        put_weights(g, actor, to_wa, to_ba)
        put_weights(g, critic, to_wc, to_bc)
        g[actor_biases : actor_biases + units] = to_ha
        g[critic_biases : critic_biases + units_of_critic] = to_hc
        if gaussian:
            for j in range(n):
                g[std_at + j] = to_std[j] - ent
        metrics[p, 0] = sum_loss / rows
        metrics[p, 1] = sum_entropy / rows
        metrics[p, 2] = sum_kl / rows
        metrics[p, 3] = sum_far / rows
        metrics[p, 4] = sum_value / rows


@kernel("void(f4[:,:,::1], f4[:,::1], i8[::1], i8[:,:,::1], f4[:,:,::1], f4[:,::1])")
def log_probs(of_actor, vector, layout, choices, numbers, result):
    """Fill in log π(a|s), (P, B), from the last hidden units."""
    members, rows, units = of_actor.shape
    n = layout[7]
    out, z = np.empty(n, F), np.empty(n, F)
    for p in range(members):
        w, b = weights_of(vector[p], layout[0], units, n)
        log_std, std = deviations(vector[p], layout)
        for r in range(rows):
            for j in range(n):
                out[j] = dot(of_actor[p, r], w[j]) + b[j]
            if layout[6]:
                result[p, r] = log_normal(out, log_std, std, numbers[p, r], z)
            else:
                log_softmax(out, z)
                result[p, r] = out[choices[p, r, 0]]


@kernel("void(f4[:,:,::1], f4[:,::1], i8[::1], f4[:,::1])")
def values(of_critic, vector, layout, result):
    """Fill in v(s), (P, B), from the last hidden units."""
    members, rows, units = of_critic.shape
    for p in range(members):
        w, b = weights_of(vector[p], layout[1], units, 1)
        for r in range(rows):
            result[p, r] = dot(of_critic[p, r], w[0]) + b[0]


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


@kernel("void(f4[:,:,::1], f4[:,::1], i8[::1], i8[::1], i8[::1], f4[:,:,::1], i8[:,:,::1], f4[:,:,::1])")
def act(obs, vector, layout, sizes, starts, noise, choices, numbers):
    """Fill in actions for observations (P, N, inputs).

    `sizes` and `starts` describe the actor's layers, and the noise is (P, N, n).
    """
    members, rows = obs.shape[:2]
    n = layout[7]
    out = np.empty(n, F)
    for p in range(members):
        w, b = weights_of(vector[p], layout[0], sizes[-2], n)
        _, std = deviations(vector[p], layout)
        h = perceptron(vector[p], sizes, starts, obs[p], layout[5])
        given, chosen, drawn = noise[p], choices[p], numbers[p]
        for r in range(rows):
            outputs(r, h, w, b, out)
            choose(r, out, given, std, chosen, drawn, layout[6])
