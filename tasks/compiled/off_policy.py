"""Kernels of replay learning: transitions, and losses of critics and soft policies.

`networks.fused.losses`, whose operations call them, and `experience.replay_buffer` define what they compute.

`columns` (6, 2) are the first column and the end (exclusive) of each field in a transition: observation, next
observation, action, reward, termination and truncation. A replay buffer is (P, slots, N, numbers in a transition).
"""

from __future__ import annotations

import math

import numpy as np

from .decorators import inner, kernel
from .layers import HALF, ONE, ZERO, F

LOG_STD_LOW, LOG_STD_HIGH = F(-20.0), F(2.0)
LOG_DENSITY = F(0.5 * math.log(2 * math.pi) + 2 * math.log(2))
TWO = F(2.0)


@kernel("f4[:,:,:,::1], i8, i8[:,::1], f4[:,:,:], f4[:,:,:], f4[:,:,:], f4[:,:], b1[:,:], b1[:,:]")
def store(numbers, slot, columns, obs, next_obs, action, reward, terminated, truncated):
    """Write one step's transitions (P, N, ...) into a slot."""
    members, _, envs, _ = numbers.shape
    for p in range(members):
        for n in range(envs):
            row = numbers[p, slot, n]
            for j in range(obs.shape[2]):
                row[columns[0, 0] + j] = obs[p, n, j]
                row[columns[1, 0] + j] = next_obs[p, n, j]
            for j in range(action.shape[2]):
                row[columns[2, 0] + j] = action[p, n, j]
            row[columns[3, 0]] = reward[p, n]
            row[columns[4, 0]] = ONE if terminated[p, n] else ZERO
            row[columns[5, 0]] = ONE if truncated[p, n] else ZERO


@inner()
def copied(row, columns, out):
    """Copy one field of a transition."""
    for j in range(columns[1] - columns[0]):
        out[j] = row[columns[0] + j]


@inner()
def n_step_rows(numbers, rows, gamma, n_step, envs, columns, obs, next_obs, action, reward, discount):
    """Do the same as `n_step_batch` for one member, whose rows are (B,)."""
    for b in range(len(rows)):
        at = rows[b]
        row = numbers[at]
        copied(row, columns[0], obs[b])
        copied(row, columns[2], action[b])
        total, kept = row[columns[3, 0]], gamma
        for _ in range(1, n_step):
            if row[columns[4, 0]] != ZERO or row[columns[5, 0]] != ZERO:
                break
            at = (at + envs) % len(numbers)
            row = numbers[at]
            total += kept * row[columns[3, 0]]
            kept *= gamma
        copied(row, columns[1], next_obs[b])
        reward[b], discount[b] = total, kept * (ONE - row[columns[4, 0]])


@kernel("f4[:,:,::1], i8[:,:], f4[:,:], i8, i8, i8[:,::1], f4[:,:,::1], f4[:,:,::1], f4[:,:,::1], f4[:,::1], f4[:,::1]")
def n_step_batch(numbers, rows, gamma, n_step, envs, columns, obs, next_obs, action, reward, discount):
    """Fill in the n-step transitions that begin at rows (P, B)."""
    for p in range(len(numbers)):
        place = (obs[p], next_obs[p], action[p], reward[p], discount[p])
        n_step_rows(numbers[p], rows[p], gamma[p, 0], n_step, envs, columns, *place)


@inner()
def clipped(x, limit):
    """Return x clipped to [-limit, limit]; NaN stays NaN."""
    x = limit if x > limit else x
    return -limit if x < -limit else x


@inner()
def huber_rows(q, choices, targets, weights, weighted, limit, errors, slopes):
    """Do the same as `huber` for one member; return its loss."""
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


@kernel("f4[:,:,:], i8[:,:], f4[:,:], f4[:,:], b1, f4, f4[::1], f4[:,::1], f4[:,:,::1]")
def huber(q, choices, targets, weights, weighted, limit, losses, errors, slopes):
    """Fill in mean losses (P,), errors (P, B), and slopes in q."""
    for p in range(len(q)):
        weight = weights[p] if weighted else targets[p]  # there are none to take
        losses[p] = huber_rows(q[p], choices[p], targets[p], weight, weighted, limit, errors[p], slopes[p])


@inner()
def twins_rows(q, targets, weights, weighted, limit, by, losses, errors, slopes):
    """Do the same as `twins` for one member."""
    count, rows, _ = q.shape
    for r in range(rows):
        losses[r] = ZERO
    for i in range(count):
        for r in range(rows):
            error = targets[r] - q[i, r, 0]
            near = clipped(error, limit)
            weight = weights[r] if weighted else ONE
            losses[r] += weight * near * (error - HALF * near)
            errors[i, r], slopes[i, r] = error, weight * near / F(-by)


@kernel("f4[:,:,:,:], f4[:,:], f4[:,:], b1, f4, i8, f4[:,::1], f4[:,:,::1], f4[:,:,::1]")
def twins(q, targets, weights, weighted, limit, by, losses, errors, slopes):
    """Fill in the losses, errors and slopes of twin critics.

    They are (P, B), (P, 2, B) and (P, 2, B); values q are (P, 2, B, 1). The loss is linear in errors beyond the limit.
    """
    for p in range(len(q)):
        weight = weights[p] if weighted else targets[p]  # there are none to take
        twins_rows(q[p], targets[p], weight, weighted, limit, by, losses[p], errors[p], slopes[p])


@inner()
def soft_value_rows(q, entropies, alpha, sign, value):
    """Do the same as `soft_value` for one member."""
    rows, terms = entropies.shape
    for r in range(rows):
        a, b = q[0, r, 0], q[1, r, 0]
        total = a if a <= b or a != a else b
        for j in range(terms):
            total += entropies[r, j] * alpha[j]
        value[r] = sign * total


@kernel("f4[:,:,:,:], f4[:,:,:], f4[:,:], f4, f4[:,::1]")
def soft_value(q, entropies, alpha, sign, value):
    """Fill in the soft values (P, B) of twin critics.

    They are sign (min q + α · entropies). The critics' values q are (P, 2, B, 1).
    """
    for p in range(len(q)):
        soft_value_rows(q[p], entropies[p], alpha[p], sign, value[p])


@inner()
def soft_value_slope_rows(g, q, alpha, sign, to_q, to_entropies):
    """Do the same as `soft_value_slope` for one member."""
    rows, terms = to_entropies.shape
    for r in range(rows):
        x = sign * g[r]
        first = q[0, r, 0] <= q[1, r, 0]
        to_q[0, r, 0] = x if first else ZERO
        to_q[1, r, 0] = ZERO if first else x
        for j in range(terms):
            to_entropies[r, j] = alpha[j] * x


@kernel("f4[:,:], f4[:,:,:,:], f4[:,:], f4, f4[:,:,:,::1], f4[:,:,::1]")
def soft_value_slope(g, q, alpha, sign, to_q, to_entropies):
    """Fill in slopes in q and entropies from those in soft values."""
    for p in range(len(q)):
        soft_value_slope_rows(g[p], q[p], alpha[p], sign, to_q[p], to_entropies[p])


@inner()
def squash_rows(outputs, noise, first, c, spread, entropies):
    """Do the same as `squash` for one member."""
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


@kernel("f4[:,:,:], f4[:,:,:], i8, f4[:,:,::1], f4[:,:,::1], f4[:,:,::1]")
def squash(outputs, noise, first, c, spread, entropies):
    """Fill in squashed normal numbers, their scaled noise, and -log π.

    They are (P, B, k), (P, B, k) and (P, B, 1). The outputs are k means and k log standard deviations. The noise is
    (P or 1, ..., k) and is used from row `first` on.
    """
    for p in range(len(c)):
        squash_rows(outputs[p], noise[p % len(noise)], first, c[p], spread[p], entropies[p])


@inner()
def squash_slope_rows(g_c, g_entropies, c, outputs, spread, weights, weighted, by, out):
    """Do the same as `squash_slope` for one member."""
    rows, k = c.shape
    for r in range(rows):
        g_entropy = g_entropies[r, 0]
        weight = weights[r] if weighted else ONE
        for j in range(k):
            x, log_std = c[r, j], outputs[r, k + j]
            g_mean = g_c[r, j] * (ONE - x * x) - TWO * g_entropy * x
            g_log_std = g_mean * spread[r, j] + g_entropy
            if log_std <= LOG_STD_LOW or log_std >= LOG_STD_HIGH:
                g_log_std = ZERO
            out[r, j], out[r, k + j] = weight * g_mean / F(by), weight * g_log_std / F(by)


@kernel("f4[:,:,:], f4[:,:,:], f4[:,:,::1], f4[:,:,:], f4[:,:,::1], f4[:,:], b1, i8, f4[:,:,::1]")
def squash_slope(g_c, g_entropies, c, outputs, spread, weights, weighted, by, out):
    """Fill in slopes in outputs from slopes in c and -log π."""
    for p in range(len(c)):
        weight = weights[p] if weighted else spread[p, :, 0]  # there are none to take
        squash_slope_rows(g_c[p], g_entropies[p], c[p], outputs[p], spread[p], weight, weighted, by, out[p])


@inner()
def follow_vector(target, vector, tau):
    """Move one member's target by a fraction."""
    for i in range(len(target)):
        target[i] = (ONE - tau) * target[i] + tau * vector[i]


@kernel("f4[:,::1], f4[:,::1], f4[:,:], b1[:,:]")
def follow(target, vector, tau, due):
    """Move the targets (P, D) that are due by fractions tau."""
    for p in range(len(target)):
        if due[p, 0]:
            follow_vector(target[p], vector[p], tau[p, 0])


@inner()
def sum_of(x):
    """Return the sum of a multiple of 8 numbers, in NumPy's order."""
    s = x[:8].copy()
    for i in range(8, len(x), 8):
        for j in range(8):
            s[j] += x[i + j]
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))


@kernel("f8[:,:,::1], i8[:,::1], f8[:,::1]")
def set_children(level, index, values):
    """Set children (P, B) in a sum tree's level to values.

    The level is (P, nodes, children of each). The children's nodes, and the sums of these, replace the arguments.
    """
    members, count = index.shape
    fan = level.shape[2]
    for p in range(members):
        for b in range(count):
            level[p, index[p, b] // fan, index[p, b] % fan] = values[p, b]
        for b in range(count):
            index[p, b] //= fan
            values[p, b] = sum_of(level[p, index[p, b]])


@kernel("f8[:,:,::1], i8[:,::1], f8[:,::1]")
def find_children(level, index, targets):
    """Find the children where running sums first exceed targets (P, B).

    They replace their nodes, and what remains of the targets replaces these. `SumTree.find` does the same in NumPy.
    """
    members, count = index.shape
    fan = level.shape[2]
    for p in range(members):
        for b in range(count):
            row, end, target = level[p, index[p, b]], 0.0, targets[p, b]
            for j in range(fan):
                end += row[j]
            end = np.nextafter(end, 0.0)
            target = end if end < target or end != end else target
            child, running, before = 0, row[0], 0.0
            while running <= target and child < fan - 1:
                child += 1
                before = running
                running += row[child]
            index[p, b], targets[p, b] = index[p, b] * fan + child, target - before
