"""Kernels of whole gradient steps on replayed transitions.

`descend_q` takes one of deep Q-learning, `descend_actor_critic` one of an actor with critics. The parts of the latter
are a deterministic policy or a soft one of numbers and choices; critics that give means or quantiles; and targets that
are least values or truncated mixtures. Either network may be renormalized over a batch, see `renorm`. Members are taken
one after the other, see `descent`.
"""

from __future__ import annotations

import numpy as np

from .decorators import inner, kernel
from .descent import descend_member
from .layers import ONE, ZERO, F
from .off_policy import follow_vector, n_step_rows
from .perceptrons import CONSTANT, LEARN, backward_member, forward_member, join_rows, last_units, number_of_units
from .policies import log_softmax
from .records import (
    ActionForm,
    ActorCritics,
    CriticForm,
    Descent,
    Draw,
    GivenBatch,
    HeadForm,
    QErrors,
    QNetworks,
    Returns,
    Scaling,
    SoftErrors,
    Transitions,
)
from .renorm import backward, forward, keep_rows_with_slopes, room_of, to_inputs
from .replay_losses import (
    clipped,
    cross_entropy,
    huber_rows,
    judge_rows,
    largest,
    mean_of,
    mean_quantile_rows,
    project,
    quantile_loss,
    quantile_rows,
    sample_rows,
    sample_slope_rows,
    smooth_rows,
    soft_targets,
    square_rows,
    state_dependent_rows,
    state_dependent_slope_rows,
    tanh_slope_rows,
    truncated_targets,
)

TEN, HALF = F(10.0), F(0.5)
MEANS, QUANTILES = 0, 1  # forms of `Returns`; any other number is probabilities


@inner()
def standardize(x, mean, scale):
    """Standardize rows, clipped to ±10, as `ObservationNormalizer` does."""
    for r in range(len(x)):
        for j in range(len(mean)):
            x[r, j] = clipped((x[r, j] - mean[j]) * scale[j], TEN)


@inner()
def copy_rows(x, out):
    """Copy a matrix into the first columns of another one."""
    for r in range(len(x)):
        for j in range(x.shape[1]):
            out[r, j] = x[r, j]


@inner()
def gather(draw, scaling, table, batch, p, obs, following, action, reward, discount):
    """Fill in member p's batch.

    It is the given one, else the n-step transitions that begin at the drawn rows.
    """
    if batch.active:
        copy_rows(batch.obs[p], obs)
        copy_rows(batch.next_obs[p], following)
        copy_rows(batch.action[p], action)
        reward[:], discount[:] = batch.reward[p], batch.discount[p]
        return
    rows, inputs = draw.rows[p], table.columns[0, 1] - table.columns[0, 0]
    arrays = (obs, following, action, reward, discount)
    n_step_rows(table.numbers[p], rows, table.gamma[p, 0], table.n_step, table.envs, table.columns, *arrays)
    if scaling.active:
        standardize(obs[:, :inputs], scaling.mean[p], scaling.factor[p])
        standardize(following[:, :inputs], scaling.mean[p], scaling.factor[p])


@inner()
def action_values(outputs, form, returns, probs, values):
    """Fill in the means (actions,) of a row's distributions."""
    m = form.atoms
    for a in range(len(values)):
        atoms = outputs[a * m : (a + 1) * m]
        if form.number == MEANS:
            values[a] = atoms[0]
        elif form.number == QUANTILES:
            values[a] = mean_of(atoms)
        else:
            logits = atoms.copy()
            log_softmax(logits, probs)
            values[a] = ZERO
            for j in range(m):
                values[a] += probs[j] * returns[j]


@kernel(Draw, Scaling, Transitions, GivenBatch, QNetworks, Returns, "f4", QErrors, Descent, "f4[:,::1], b1[:,::1]")
def descend_q(draw, scaling, table, batch, networks, form, limit, result, step, tau, due):
    """Take a gradient step of deep Q-learning.

    `DQNLearner.losses` defines what is computed, on the n-step transitions that begin at the drawn rows. Losses of
    means are linear in errors beyond the limit. The targets move by the fractions tau (P, 1) where they are `due` (P,
    1).
    """
    sizes, activation, m = networks.sizes, networks.activation, form.atoms
    count, inputs, outputs = draw.rows.shape[1], sizes[0], sizes[-1]
    x, following, action = np.empty((count, inputs), F), np.empty((count, inputs), F), np.empty((count, 1), F)
    reward, discount, choices = np.empty(count, F), np.empty(count, F), np.empty(count, np.int64)
    q, online, slopes = np.empty((count, outputs), F), np.empty((count, outputs), F), np.empty((count, outputs), F)
    values, probs, targets = np.empty(outputs // m, F), np.empty(m, F), np.empty((count, m), F)
    room = count * number_of_units(sizes)
    units, spare, to_units = np.empty(room, F), np.empty(room, F), np.empty(room, F)
    for p in range(len(draw.rows)):
        theta, target, g, returns = networks.vector[p], networks.target[p], networks.gradient[p], form.returns[p]
        gather(draw, scaling, table, batch, p, x, following, action, reward, discount)
        forward_member(following, target, sizes, activation, spare, q)
        if networks.double:
            forward_member(following, theta, sizes, activation, spare, online)
        for r in range(count):
            action_values(online[r] if networks.double else q[r], form, returns, probs, values)
            best = largest(values)
            choices[r] = np.int64(action[r, 0])
            if form.number == MEANS:
                reward[r] += discount[r] * q[r, best]
            elif form.number == QUANTILES:
                for j in range(m):
                    targets[r, j] = reward[r] + discount[r] * q[r, best * m + j]
            else:
                project(q[r, best * m : (best + 1) * m], returns, reward[r], discount[r], targets[r])
        forward_member(x, theta, sizes, activation, units, q)
        for r in range(count):
            action_values(q[r], form, returns, probs, values)
            result.values[p, r] = values[largest(values)]
        weights = draw.weights[p] if draw.weighted else reward  # without weights, none are read
        errors = result.errors[p]
        if form.number == MEANS:
            result.losses[p] = huber_rows(q, choices, reward, weights, draw.weighted, limit, errors, slopes)
        else:
            total = 0.0
            slopes[:] = ZERO
            for r in range(count):
                span = slice(choices[r] * m, (choices[r] + 1) * m)
                atoms, to = q[r, span], slopes[r, span]
                loss, weight = ZERO, weights[r] if draw.weighted else ONE
                if form.number == QUANTILES:
                    for i in range(m):
                        part, slope = quantile_loss(atoms[i], (F(i) + HALF) / F(m), targets[r])
                        loss += part / F(m)
                        to[i] = slope / F(m)
                    errors[r] = mean_of(targets[r]) - mean_of(atoms)
                else:
                    loss = cross_entropy(atoms, targets[r], to)
                    errors[r] = loss
                for i in range(m):
                    to[i] *= weight / F(count)
                total += weight * loss
            result.losses[p] = F(total / count)
        backward_member(slopes, x, theta, sizes, activation, units, count, to_units, g, LEARN)
        descend_member(theta, g, step, p)
        if due[p, 0]:
            follow_vector(target, theta, tau[p, 0])


@inner()
def normalize(action, form, numbers, choices):
    """Split actions into normalized numbers (B, k) and one choice (B,)."""
    for r in range(len(action)):
        for j in range(len(form.middle)):
            numbers[r, j] = (action[r, form.numbers[j]] - form.middle[j]) / form.half[j]
        choice = 0
        for j in range(len(form.choices)):
            choice = choice * form.sizes[j] + np.int64(action[r, form.choices[j]])
        choices[r] = choice


@inner()
def policy_rows(nets, p, x, learn, units, head, raw, out):
    """Fill in policy p's outputs for x, for either form of head."""
    forward(nets, p, x, learn, units, raw if head.state_dependent else out)
    if head.state_dependent:
        z, log_std = last_units(units, len(x), nets.sizes), nets.vector[p, head.start : head.stop]
        state_dependent_rows(raw, z, log_std, head.limits[p, 0], out)


@kernel(
    *(Draw, Scaling, Transitions, GivenBatch, ActorCritics, ActionForm, CriticForm, SoftErrors),
    *(HeadForm, "f4[:,:,::1], f4[:,::1], i8[:,::1], b1", Descent, Descent),
)
def descend_actor_critic(
    draw, scaling, table, batch, networks, actions, form, result, head, noise, alpha, subset, moves, critics, actor
):
    """Take a gradient step of critics, then of their actor.

    `ActorCriticLearner` and its subclasses define what is computed.

    Args:
        draw: rows of the transitions, and their weights.
        scaling: scale of observations.
        table: stored transitions.
        batch: the batch, if it is not gathered from them.
        networks: parameters and gradients.
        actions: form of the actions.
        form: form of the critics' values and losses.
        result: losses, errors, values and entropies, filled in.
        head: form of the policy's last layer.
        noise: standard normal numbers: (P, 2B, k) for a batch and its next observations, or for the latter alone if the
            policy is deterministic.
        alpha: entropy coefficients (P, terms).
        subset: target critics whose least values count, (P, s).
        moves: whether the actor takes a step, too.
        critics: step of the critics.
        actor: step of the actor.
    """
    policies, judges = networks.actor, networks.critics
    pi_sizes, q_sizes = policies.sizes, judges.sizes
    members, rows = draw.rows.shape
    count, terms, k, n = result.errors.shape[1], alpha.shape[1], len(actions.middle), actions.n
    inputs, outputs, per_value = pi_sizes[0], pi_sizes[-1], q_sizes[-1]
    if head.state_dependent:
        outputs = 2 * k + (n if n > 1 else 0)
    raw, to_raw = np.empty((rows, pi_sizes[-1]), F), np.zeros((rows, pi_sizes[-1]), F)
    obs, following = np.zeros((rows, inputs), F), np.zeros((rows, inputs), F)  # the padding of a lone number is 0
    action, reward, discount = (
        np.empty((rows, len(actions.numbers) + len(actions.choices)), F),
        np.empty(rows, F),
        np.empty(rows, F),
    )
    numbers, choices = np.empty((rows, k), F), np.empty(rows, np.int64)
    out, next_out, to_out = np.empty((rows, outputs), F), np.empty((rows, outputs), F), np.zeros((rows, outputs), F)
    c, to_c, spread = np.empty((rows, k), F), np.empty((rows, k), F), np.empty((rows, k), F)
    log_probs, probs, to_probs = np.empty((rows, n), F), np.ones((rows, n), F), np.empty((rows, n), F)
    next_entropies, to_entropies = np.empty((rows, terms), F), np.empty((rows, terms), F)
    units, to_units = np.empty(room_of(policies, rows), F), np.empty(rows * number_of_units(pi_sizes), F)
    # A batch and its next observations. Renormalized critics see them together, and learn from the moments of both.
    both = 2 * rows
    learned = both if judges.moments.active else rows
    x, q_units = np.empty((both, q_sizes[0]), F), np.empty((count, room_of(judges, learned)), F)
    q, to_q = np.empty((count, both, per_value), F), np.zeros((count, learned, per_value), F)
    to_q_units = np.empty(learned * number_of_units(q_sizes), F)
    now, later, slopes = q[:, :rows], q[:, rows:], to_q[:, :rows]
    targets, heard, chosen = np.empty((rows, form.kept), F), np.arange(form.heard), np.empty(rows, np.int64)
    share = ONE / F(count * per_value * form.kept) if form.kept > 0 else ONE
    for p in range(members):
        gather(draw, scaling, table, batch, p, obs, following, action, reward, discount)
        policy_rows(networks.next_actor, p, following, CONSTANT, units, head, raw, next_out)
        if form.soft:
            sample_rows(next_out, noise[p], rows, c, spread, log_probs, probs, next_entropies)
        else:
            smooth_rows(next_out, noise[p], form.smoothing[p, 0], form.smoothing[p, 1], c)

        normalize(action, actions, numbers, choices)
        join_rows(obs, numbers, x[:rows])
        join_rows(following, c, x[rows:])
        for i in range(count):
            if learned == rows:
                forward(networks.targets, count * p + i, x[rows:], CONSTANT, q_units[i], q[i, rows:])
            forward(judges, count * p + i, x[:learned], LEARN, q_units[i], q[i, :learned])
        if form.kept > 0:
            truncated_targets(later, next_entropies, alpha[p], reward, discount, targets)
        else:
            soft_targets(later, subset[p], probs, next_entropies, alpha[p], reward, discount)
        losses, errors, values = result.critic_losses[p], result.errors[p], result.values[p]
        weights = draw.weights[p] if draw.weighted else reward  # without weights, none are read
        if form.kept > 0:
            quantile_rows(now, targets, weights, draw.weighted, share, losses, errors, values, slopes)
        else:
            square_rows(now, choices, reward, weights, draw.weighted, form.limit, losses, errors, values, slopes)
        for i in range(count):
            backward(judges, count * p + i, to_q[i], x[:learned], LEARN, q_units[i], to_q_units)
        descend_member(networks.critic_vector[p], networks.critic_gradient[p], critics, p)
        if not moves:
            continue

        policy_rows(policies, p, obs, LEARN, units, head, raw, out)
        if form.soft:
            sample_rows(out, noise[p], 0, c, spread, log_probs, probs, result.entropies[p])
        else:
            smooth_rows(out, noise[p], ZERO, ZERO, c)
        join_rows(obs, c, x[:rows])
        for i in heard:
            forward(judges, count * p + i, x[:rows], CONSTANT, q_units[i], q[i, :rows])
        entropies, losses = result.entropies[p], result.actor_losses[p]
        if form.kept > 0:
            mean_quantile_rows(now, entropies, alpha[p], losses, slopes)
        else:
            slopes[:] = ZERO
            judge_rows(now, heard, form.mean, probs, entropies, alpha[p], losses, slopes, to_probs)
        to_c[:] = ZERO
        for i in heard[: form.heard if k > 0 else 0]:
            # Where the actor hears the least value, a row's slopes go through one critic alone.
            kept = keep_rows_with_slopes(judges, to_q[i, :rows], q_units[i], chosen)
            backward(judges, count * p + i, to_q[i, :kept], x[:rows], CONSTANT, q_units[i], to_q_units)
            to_inputs(judges, count * p + i, q_units[i], to_q_units, inputs, chosen[:kept], to_c)
        if form.soft:
            for r in range(rows):
                to_entropies[r] = -alpha[p]
            sample_slope_rows(to_c, to_probs, to_entropies, out, c, spread, log_probs, probs, to_out)
        else:
            tanh_slope_rows(to_c, c, to_out)
        theta, g = policies.vector[p], policies.gradient[p]
        if head.state_dependent:
            span = slice(head.start, head.stop)
            z = last_units(units, rows, pi_sizes)
            state_dependent_slope_rows(to_out, raw, z, theta[span], head.limits[p, 0], out, to_raw, g[span])
        backward(policies, p, to_raw if head.state_dependent else to_out, obs, LEARN, units, to_units)
        descend_member(theta, g, actor, p)
