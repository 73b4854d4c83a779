"""Kernels of a replay memory, (P, slots, N, numbers in a transition).

`columns` are the first and the last but one of each field's numbers: those of observation, next observation and action,
then of reward, termination and truncation.
"""

from __future__ import annotations

from .layers import ONE, ZERO, F, inner, kernel


@kernel("void(f4[:,:,:,::1], i8, i8[:,::1], f4[:,:,:], f4[:,:,:], f4[:,:,:], f4[:,:], b1[:,:], b1[:,:])")
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
    """Copy a field's numbers."""
    for j in range(columns[1] - columns[0]):
        out[j] = row[columns[0] + j]


@kernel(
    "void(f4[:,:,::1], i8[:,:], f4[:,:], i8, i8, i8[:,::1],f4[:,:,::1], f4[:,:,::1], f4[:,:,::1], f4[:,::1], f4[:,::1])"
)
def n_step_batch(numbers, rows, gamma, n_step, envs, columns, obs, next_obs, action, reward, discount):
    """Fill in what `ReplayBuffer.returns` has of rows (P, B)."""
    members, count, _ = numbers.shape
    for p in range(members):
        factor = F(gamma[p, 0])
        for b in range(rows.shape[1]):
            at = rows[p, b]
            row = numbers[p, at]
            copied(row, columns[0], obs[p, b])
            copied(row, columns[2], action[p, b])
            total, kept = row[columns[3, 0]], factor
            for _ in range(1, n_step):
                if row[columns[4, 0]] != ZERO or row[columns[5, 0]] != ZERO:
                    break
                at = (at + envs) % count
                row = numbers[p, at]
                total += kept * row[columns[3, 0]]
                kept *= factor
            copied(row, columns[1], next_obs[p, b])
            reward[p, b], discount[p, b] = total, kept * (ONE - row[columns[4, 0]])
