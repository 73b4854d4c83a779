"""The kernel that plays whole rollouts of classic control."""

from __future__ import annotations

import numpy as np

from .compiling import inner, kernel
from .control import advance, observe
from .layers import ONE, ZERO, F, weights_of
from .perceptrons import head_of, perceptron
from .policies import choose, deviations, outputs


@inner()
def mixed(z):
    """Return SplitMix64's finalizer of 64 bits; see `rng.streams`."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inner()
def uniform(key, position):
    """Return the number in [0, 1) at a position of a stream."""
    z = mixed((np.uint64(position) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + key)
    return np.float64(mixed(z + key) >> np.uint64(11)) * 2.0**-53


@kernel(
    "void(f4[:,::1], i8[::1], i8[::1], f4[:,:,:,::1], i8, i8, i8, i8, u8[::1], u8[::1], f8[:,::1], f4[::1],"
    "f8[:,::1], i8[::1], f8[::1], i8[::1], f4[:,:,:,::1], i8[:,:,:,::1], f4[:,:,:,::1], f4[:,:,:,::1], f4[:,:,::1],"
    "f4[:,:,::1], f4[:,:,::1], f8[:,:,::1], i8[:,:,::1])"
)
def play(
    vector,
    layout,
    sizes,
    noise,
    first,
    last,
    model,
    limit,
    trig,
    keys,
    ranges,
    bounds,
    s,
    episode,
    returns,
    elapsed,
    obs,
    choices,
    numbers,
    next_obs,
    rewards,
    terminated,
    ended,
    final_returns,
    lengths,
):
    """Act and step from one step of a rollout to another.

    Members follow one another. The policy's arguments are those of `act`, its noise (T, P, N, n). Of the environments,
    (M,) each: streams of first states (`keys`), the running episodes' numbers, returns and lengths, and states `s`
    (components, M), all changed in place. First states are uniform in `ranges` (components, 2), lowest number and
    width; numbers that act are clipped to `bounds`. The rest is filled in, for each step: `Rollout` explains it; and
    the returns and lengths (T, P, N) of episodes that ended.
    """
    members, _, rows, width = obs.shape
    parts = len(s)
    actor, _, _, kind, gaussian = layout
    n = sizes[-1]
    out = np.empty(n, F)
    for p in range(members):
        w, b = weights_of(vector[p], head_of(sizes, actor), sizes[-2], n)
        _, std = deviations(vector[p], layout, n)
        before = obs[p, first]
        for r in range(rows):
            observe(model, s, p * rows + r, before, r, trig)
        for t in range(first, last):
            h = perceptron(before, vector[p], actor, sizes, kind)
            given, chosen, drawn, after, following = (
                noise[t, p],
                choices[p, t],
                numbers[p, t],
                next_obs[p, t],
                obs[p, t + 1],
            )
            for r in range(rows):
                i, choice, number = p * rows + r, 0, ZERO
                outputs(r, h, w, b, out)
                choose(r, out, given, std, chosen, drawn, gaussian)
                if gaussian:
                    number = min(max(drawn[r, 0], bounds[0]), bounds[1])
                else:
                    choice = chosen[r, 0]
                reward, over = advance(model, s, i, choice, number, trig)
                returns[i] += reward
                elapsed[i] += 1
                rewards[t, p, r], terminated[t, p, r] = reward, ONE if over else ZERO
                observe(model, s, i, after, r, trig)
                if over or elapsed[i] >= limit:
                    ended[t, p, r], final_returns[t, p, r], lengths[t, p, r] = ONE, returns[i], elapsed[i]
                    episode[i] += 1
                    returns[i], elapsed[i] = 0.0, 0
                    for k in range(parts):
                        s[k, i] = ranges[k, 0] + ranges[k, 1] * uniform(keys[i], episode[i] * parts + k)
                    observe(model, s, i, following, r, trig)
                else:
                    ended[t, p, r] = ZERO
                    for k in range(width):
                        following[r, k] = after[r, k]
            before = following
