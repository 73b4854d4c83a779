"""The kernel that plays whole rollouts of classic control."""

from __future__ import annotations

import numpy as np

from .control import advance, observe
from .layers import ONE, ZERO, F, inner, kernel, perceptron, weights_of
from .policies import choose, deviations, outputs


@inner()
def mixed(z):
    """Apply the finalizer of SplitMix64 to 64 bits, see `rng.streams`."""
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
    "void(f4[:,::1], i8[::1], i8[::1], i8[::1], f4[:,:,:,::1], i8, i8, i8, i8, u8[::1], u8[::1], f8[:,::1], f4[::1],"
    "f8[:,::1], i8[::1], f8[::1], i8[::1], f4[:,:,:,::1], i8[:,:,:,::1], f4[:,:,:,::1], f4[:,:,:,::1], f4[:,:,::1],"
    "f4[:,:,::1], f4[:,:,::1], f8[:,:,::1], i8[:,:,::1])"
)
def play(
    vector,
    layout,
    sizes,
    starts,
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
    """Play the steps from `first` to `last` (exclusive) of a rollout.

    One member is played after the other.

    - `vector`, `layout`, `sizes` and `starts` are those of `act`; the noise is (T, P, N, n).
    - `model` is a constant of `control`, and `limit` the largest length of an episode.
    - `keys` (M,) are the streams of initial states, which are uniform: `ranges` (components, 2) are their lowest
      numbers and widths.
    - `bounds` (2,) clip numbers before they act.
    - `s` (components, M) are the states; `episode`, `returns` and `elapsed` (M,) are the number, return and length of
      the running episodes. These arrays change in place.
    - `final_returns` and `lengths` (T, P, N) are filled in where an episode ends. The other arrays are filled in at
      each step; `Rollout` explains them.
    """
    members, _, rows, width = obs.shape
    parts = len(s)
    n, gaussian = layout[7], layout[6]
    out = np.empty(n, F)
    for p in range(members):
        w, b = weights_of(vector[p], layout[0], sizes[-2], n)
        _, std = deviations(vector[p], layout)
        before = obs[p, first]
        for r in range(rows):
            observe(model, s, p * rows + r, before, r, trig)
        for t in range(first, last):
            h = perceptron(vector[p], sizes, starts, before, layout[5])
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
