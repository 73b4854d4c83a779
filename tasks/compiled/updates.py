"""Kernel of a pass over a batch of rollouts: one call takes all gradient steps of an actor-critic.

Between short steps, Python takes several times as long as the steps themselves. The members are taken one after the
other, so that their parameters and moments stay in the processor's caches from one minibatch to the next.
"""

from __future__ import annotations

import numpy as np

from .descent import clip_member, step_member
from .layers import ONE, F
from .loading import inner, kernel
from .policies import differentiate_member, scratch_for


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
    """Take a gradient step on each of `parts` minibatches of a batch, whose rows come in a random order (P, B).

    The arguments from `obs` to `metrics` are those of `policies.differentiate`, but with all rows of the batch; those
    from `lr` on are those of `descent.optimize`. Metrics, gradient and factors are those of a member's last minibatch.

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
