"""Kernels of replay buffers: transitions, priorities, and targets that follow.

`experience.replay_buffer` and `experience.prioritized` define what they compute.

`columns` (6, 2) are the first column and the end (exclusive) of each field in a transition: observation, next
observation, action, reward, termination and truncation. A replay buffer is (P, slots, N, numbers in a transition).
"""

from __future__ import annotations

import numpy as np

from .decorators import inner, kernel
from .layers import ONE, ZERO


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
def follow_vector(target, vector, tau):
    """Move one member's target by a fraction."""
    for i in range(len(target)):
        target[i] = (ONE - tau) * target[i] + tau * vector[i]


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
