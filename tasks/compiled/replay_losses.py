"""Losses of replay learning and their slopes, for one member.

The learners of `algorithms.dqn` and `algorithms.continuous` define what is computed.

Notation: B rows, k numbers and n choices in an action, c critics of V values each, t quantiles of a target. A lone
choice has probability 1. A value of a critic belongs to a choice, or is a quantile.
"""

from __future__ import annotations

import math

import numpy as np

from .decorators import inner
from .layers import HALF, ONE, ZERO, F
from .policies import log_softmax

LOG_STD_LOW, LOG_STD_HIGH = F(-20.0), F(2.0)
LOG_DENSITY = F(0.5 * math.log(2 * math.pi) + 2 * math.log(2))
TWO, VARIANCE = F(2.0), F(1e-6)  # the latter is that of `networks.sde`


@inner()
def clipped(x, limit):
    """Return x clipped to [-limit, limit]; NaN stays NaN."""
    x = limit if x > limit else x
    return -limit if x < -limit else x


@inner()
def largest(x):
    """Return the place of the first maximum; NaN counts as largest."""
    best = 0
    for j in range(1, len(x)):
        if x[j] > x[best] or (x[j] != x[j] and x[best] == x[best]):
            best = j
    return best


@inner()
def least(q, critics, r, d):
    """Return the critic with the least value; NaN counts as least."""
    best = critics[0]
    for i in critics[1:]:
        low, other = q[best, r, d], q[i, r, d]
        best = best if low <= other or low != low else i
    return best


# --- actions ---


@inner()
def squash_rows(outputs, noise, first, c, spread, entropies):
    """Fill in squashed normal numbers (B, k), and their scaled noise.

    The first column of entropies gets -log π. The outputs begin with k means and k log standard deviations. The noise
    is used from row `first` on.
    """
    rows, k = c.shape
    for r in range(rows):
        total = ZERO
        for j in range(k):
            log_std, z = outputs[r, k + j], noise[first + r, j]
            log_std = LOG_STD_HIGH if log_std > LOG_STD_HIGH else log_std
            log_std = LOG_STD_LOW if log_std < LOG_STD_LOW else log_std
            spread[r, j] = F(math.exp(log_std)) * z
            u = outputs[r, j] + spread[r, j]
            c[r, j], size = F(math.tanh(u)), abs(u)  # exactly 1 if tanh u rounds to 1
            shrunk = F(math.log(F(math.exp(-TWO * size)) + ONE)) + size
            total += z * z * HALF + log_std - TWO * shrunk
        entropies[r, 0] = total + F(k) * LOG_DENSITY


@inner()
def choose_rows(outputs, log_probs, probs, entropies):
    """Fill in the probabilities of choices, (B, n).

    The last column of entropies gets theirs. The outputs end with n logits.
    """
    rows, n = probs.shape
    first, last = outputs.shape[1] - n, entropies.shape[1] - 1
    for r in range(rows):
        for d in range(n):
            log_probs[r, d] = outputs[r, first + d]
        entropies[r, last] = log_softmax(log_probs[r], probs[r])


@inner()
def sample_rows(outputs, noise, first, c, spread, log_probs, probs, entropies):
    """Sample the actions of a soft policy."""
    if c.shape[1] > 0:
        squash_rows(outputs, noise, first, c, spread, entropies)
    if probs.shape[1] > 1:
        choose_rows(outputs, log_probs, probs, entropies)


@inner()
def state_dependent_rows(raw, z, log_std, limit, out):
    """Fill in a soft policy's outputs by those of a state-dependent head.

    Those in `raw` are k means and the logits of choices. Deviations follow from z (B, units) and log σ (units * k,).
    `algorithms.continuous.actions` defines them.
    """
    rows, units = z.shape
    k, n = len(log_std) // units, out.shape[1] - 2 * (len(log_std) // units)
    variances = np.exp(TWO * log_std)
    for r in range(rows):
        for j in range(k):
            variance = VARIANCE
            for i in range(units):
                variance += z[r, i] * z[r, i] * variances[i * k + j]
            out[r, j], out[r, k + j] = clipped(raw[r, j], limit), HALF * F(math.log(variance))
        for d in range(n):
            out[r, 2 * k + d] = raw[r, k + d]


@inner()
def state_dependent_slope_rows(to_out, raw, z, log_std, limit, out, to_raw, gradient):
    """Fill in slopes in the outputs `raw` and in log σ.

    z gets none from the noise.
    """
    rows, units = z.shape
    k, n = len(log_std) // units, out.shape[1] - 2 * (len(log_std) // units)
    gradient[:] = ZERO
    for r in range(rows):
        for j in range(k):
            to_raw[r, j] = ZERO if abs(raw[r, j]) > limit else to_out[r, j]
            share = to_out[r, k + j] / F(math.exp(TWO * out[r, k + j]))
            for i in range(units):
                gradient[i * k + j] += share * z[r, i] * z[r, i]
        for d in range(n):
            to_raw[r, k + d] = to_out[r, 2 * k + d]
    variances = np.exp(TWO * log_std)
    for i in range(len(gradient)):
        gradient[i] *= variances[i]


@inner()
def smooth_rows(outputs, noise, std, limit, c):
    """Fill in a deterministic policy's numbers with clipped noise: arXiv:1802.09477, eq. 14."""
    rows, k = c.shape
    for r in range(rows):
        for j in range(k):
            c[r, j] = clipped(F(math.tanh(outputs[r, j])) + clipped(std * noise[r, j], limit), ONE)


@inner()
def sample_slope_rows(to_c, to_probs, to_entropies, outputs, c, spread, log_probs, probs, out):
    """Fill in slopes of a mean in a soft policy's outputs."""
    rows, k, n = len(c), c.shape[1], probs.shape[1]
    by, first, last = F(rows), outputs.shape[1] - n, to_entropies.shape[1] - 1
    for r in range(rows):
        g_entropy = to_entropies[r, 0]
        for j in range(k):
            x, log_std = c[r, j], outputs[r, k + j]
            g_mean = to_c[r, j] * (ONE - x * x) - TWO * g_entropy * x
            g_log_std = g_mean * spread[r, j] + g_entropy
            if log_std <= LOG_STD_LOW or log_std >= LOG_STD_HIGH:
                g_log_std = ZERO
            out[r, j], out[r, k + j] = g_mean / by, g_log_std / by
        if n > 1:
            mean = ZERO
            for d in range(n):
                out[r, first + d] = to_probs[r, d] - to_entropies[r, last] * log_probs[r, d]
                mean += probs[r, d] * out[r, first + d]
            for d in range(n):
                out[r, first + d] = probs[r, d] * (out[r, first + d] - mean) / by


@inner()
def tanh_slope_rows(to_c, c, out):
    """Fill in slopes of a mean in a deterministic policy's outputs."""
    rows, k = c.shape
    for r in range(rows):
        for j in range(k):
            out[r, j] = to_c[r, j] * (ONE - c[r, j] * c[r, j]) / F(rows)


# --- values of critics ---


@inner()
def bonus(entropies, alpha):
    """Return the entropies of a row times their coefficients."""
    total = ZERO
    for j in range(len(alpha)):
        total += entropies[j] * alpha[j]
    return total


@inner()
def soft_targets(q, critics, probs, entropies, alpha, reward, discount):
    """Add the discounted soft values of the next states to rewards (B,)."""
    rows, n = probs.shape
    for r in range(rows):
        total = ZERO
        for d in range(n):
            total += probs[r, d] * q[least(q, critics, r, d), r, d]
        for j in range(len(alpha)):
            total += entropies[r, j] * alpha[j]
        reward[r] += discount[r] * total


@inner()
def truncated_targets(q, entropies, alpha, reward, discount, targets):
    """Fill in targets: the least t quantiles of a mixture, (B, t).

    arXiv:2005.04269, eq. 8 to 10.
    """
    count, rows, m = q.shape
    mixture = np.empty(count * m, F)
    for r in range(rows):
        for i in range(count):
            for j in range(m):
                mixture[i * m + j] = q[i, r, j]
        mixture.sort()
        more = bonus(entropies[r], alpha)
        for j in range(targets.shape[1]):
            targets[r, j] = reward[r] + discount[r] * (mixture[j] + more)


@inner()
def judge_rows(q, heard, mean, probs, entropies, alpha, losses, to_q, to_probs):
    """Fill in an actor's losses (B,), and their slopes.

    A loss is -q minus the entropies' bonus, where q is the least value of the critics that are `heard`, or their mean.
    """
    rows, n = probs.shape
    share = ONE / F(len(heard))
    for r in range(rows):
        total = ZERO
        for d in range(n):
            if mean:
                value = ZERO
                for i in heard:
                    value += q[i, r, d]
                    to_q[i, r, d] = -(probs[r, d] * share)
                value *= share
            else:
                best = least(q, heard, r, d)
                value = q[best, r, d]
                for i in heard:
                    to_q[i, r, d] = -probs[r, d] if i == best else ZERO
            to_probs[r, d] = -value
            total += probs[r, d] * value
        for j in range(len(alpha)):
            total += entropies[r, j] * alpha[j]
        losses[r] = -total


@inner()
def mean_quantile_rows(q, entropies, alpha, losses, to_q):
    """Fill in an actor's losses (B,) by all quantiles' mean.

    arXiv:2005.04269, eq. 13.
    """
    count, rows, m = q.shape
    share = ONE / F(count * m)
    to_q[:] = -share
    for r in range(rows):
        total = ZERO
        for i in range(count):
            for j in range(m):
                total += q[i, r, j]
        losses[r] = -(total * share) - bonus(entropies[r], alpha)


# --- losses of critics ---


@inner()
def huber_rows(q, choices, targets, weights, weighted, limit, errors, slopes):
    """Fill in errors and slopes of action values; return the mean loss.

    Errors are (B,), slopes (B, n). Losses are linear in errors beyond the limit.
    """
    rows, n = q.shape
    total = 0.0
    for r in range(rows):
        error = targets[r] - q[r, choices[r]]
        near = clipped(error, limit)
        loss, slope = near * (error - HALF * near), near / F(-rows)
        if weighted:
            loss, slope = weights[r] * loss, weights[r] * slope
        for j in range(n):
            slopes[r, j] = ZERO
        slopes[r, choices[r]] = slope
        errors[r] = error
        total += loss
    return F(total / rows)


@inner()
def square_rows(q, choices, targets, weights, weighted, limit, losses, errors, values, slopes):
    """Fill in the losses (B,) of several critics, and slopes.

    Errors and values of the choices are (c, B).
    """
    count, rows, n = q.shape
    losses[:] = ZERO
    for i in range(count):
        for r in range(rows):
            value = q[i, r, choices[r]]
            error = targets[r] - value
            near = clipped(error, limit)
            weight = weights[r] if weighted else ONE
            losses[r] += weight * near * (error - HALF * near)
            for j in range(n):
                slopes[i, r, j] = ZERO
            errors[i, r], values[i, r], slopes[i, r, choices[r]] = error, value, weight * near / F(-rows)


@inner(fastmath={"reassoc", "contract"})
def quantile_loss(theta, level, targets):
    """Return the sum of a quantile's losses, and its slope."""
    loss = slope = ZERO
    for j in range(len(targets)):
        error = targets[j] - theta
        near = min(max(error, -ONE), ONE)
        weighted = near * ((ONE - level) if error < ZERO else level)
        loss += weighted * (error - HALF * near)
        slope -= weighted
    return loss, slope


@inner()
def mean_of(x):
    """Return the mean of a row."""
    total = ZERO
    for j in range(len(x)):
        total += x[j]
    return total / F(len(x))


@inner()
def quantile_rows(q, targets, weights, weighted, share, losses, errors, values, slopes):
    """Fill in the losses (B,) of critics' quantiles, and slopes.

    Errors and values of their means are (c, B). Losses for quantiles (c, B, m) and targets (B, t) are sums times
    `share`: arXiv:1710.10044, eq. 10.
    """
    count, rows, m = q.shape
    losses[:] = ZERO
    for r in range(rows):
        factor = share * (weights[r] if weighted else ONE)
        target = mean_of(targets[r])
        for i in range(count):
            for j in range(m):
                loss, slope = quantile_loss(q[i, r, j], (F(j) + HALF) / F(m), targets[r])
                losses[r] += factor * loss
                slopes[i, r, j] = factor * slope / F(rows)
            values[i, r] = mean_of(q[i, r])
            errors[i, r] = target - values[i, r]


@inner()
def project(target, returns, reward, discount, projected):
    """Fill in a target's probabilities of fixed returns, (m,).

    arXiv:1707.06887, Algorithm 1. The target are logits (m,).
    """
    m = len(returns)
    probs = np.empty(m, F)
    log_softmax(target, probs)
    step = (returns[m - 1] - returns[0]) / F(m - 1)
    projected[:] = ZERO
    for j in range(m):
        x = min(max(reward + discount * returns[j], returns[0]), returns[m - 1])
        place = int((x - returns[0]) / step) if x == x else 0
        for i in range(max(place - 1, 0), min(place + 3, m)):
            projected[i] += max(ONE - abs(x - returns[i]) / step, ZERO) * probs[j]


@inner()
def cross_entropy(logits, projected, slopes):
    """Fill in slopes in logits (m,); return their cross entropy."""
    m = len(logits)
    probs = np.empty(m, F)
    log_softmax(logits, probs)
    loss = total = ZERO
    for i in range(m):
        loss -= projected[i] * logits[i]
        total += projected[i]
    for i in range(m):
        slopes[i] = total * probs[i] - projected[i]
    return loss
