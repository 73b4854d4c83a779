"""Losses of critics, soft values, and samples of soft policies.

Notation: P members, B batch, k continuous numbers and n choices in an action, L hidden activations, D parameters.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..distributions import LOG_2_PI, log_softmax
from ..sde import variance
from .autograd import Operation, apply, array, run_for

LOG_STD_LIMITS = (-20.0, 2.0)  # log standard deviations are clamped to these, and get no gradient beyond
NONE = np.zeros((0, 0), np.float32)
_hardtanh_backward = torch.ops.aten.hardtanh_backward.default


def _taken(q: Tensor, choices: Tensor | None) -> Tensor:
    """Return the values of the choices taken.

    q is (P, ..., B, n), the choices (P, B), or None if n = 1; the result is (P, ..., B).
    """
    if choices is None:
        return q.squeeze(-1)
    index = choices.view(len(choices), *[1] * (q.ndim - 3), -1, 1).expand(*q.shape[:-1], 1)
    return q.gather(-1, index).squeeze(-1)


def _to_all(g: Tensor, choices: Tensor | None, n: int) -> Tensor:
    """Return the gradient with respect to all q, (P, ..., B, n).

    g is the gradient with respect to those of the choices taken.
    """
    g = g.unsqueeze(-1)
    if choices is None:
        return g
    index = choices.view(len(choices), *[1] * (g.ndim - 3), -1, 1).expand_as(g)
    return g.new_zeros(*g.shape[:-1], n).scatter_(-1, index, g)


def twins(
    q: Tensor, choices: Tensor | None, targets: Tensor, weight: Tensor | None, rows: int, limit: float = math.inf
) -> tuple[Tensor, Tensor, Tensor]:
    """Return twin critics' losses, errors and values.

    The loss of a row is Σᵢ w l(y - qᵢ) with l(δ) = δ²/2, linear for |δ| beyond `limit`; its slope is δ clipped to ±
    limit. The gradient is that of a mean over `rows` rows; the division comes last.

    Args:
        q: values of all choices, (P, 2, B, n).
        choices: choices taken, (P, B); None if n = 1.
        targets: y, (P, B).
        weight: w, (P, B); None for equal weights.
        rows: rows of the mean.
        limit: error beyond which the loss is linear.

    Returns:
        Losses (P, B); errors y - qᵢ and values qᵢ of the choices, each (P, 2, B), without gradients.
    """
    losses, errors, taken = apply(_Twins, q, choices, targets, weight, rows, limit)
    return losses, errors, taken


class _Twins(Operation):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, choices: Tensor | None, targets: Tensor, weight: Tensor | None, rows: int, limit: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.n = q.shape[-1]
        if choices is None and (run := run_for(q)) is not None:
            size = q.shape[:3]
            own, found, steep = (np.empty(x, np.float32) for x in (targets.shape, size, size))
            weights = NONE if weight is None else array(weight)
            run.twins(array(q), array(targets), weights, weight is not None, limit, rows, own, found, steep)
            losses, errors, slopes, taken = *map(torch.from_numpy, (own, found, steep)), q.squeeze(-1)
        else:
            taken = _taken(q, choices)
            errors = targets.unsqueeze(1) - taken
            clipped = errors.clamp(-limit, limit)
            weighted = clipped if weight is None else clipped * weight.unsqueeze(1)
            losses, slopes = (weighted * (errors - 0.5 * clipped)).sum(1), weighted / -rows
        ctx.save_for_backward(slopes, choices)
        ctx.mark_non_differentiable(errors, taken)
        return losses, errors, taken

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        slopes, choices = ctx.saved_tensors
        return _to_all(g.unsqueeze(1) * slopes, choices, ctx.n), None, None, None, None, None


def soft_value(q: Tensor, sample: SoftSample, alpha: Tensor, sign: int = 1) -> Tensor:
    """Return the soft value of twin critics, (P, B).

        V = Σ_d π(d|s) minᵢ qᵢ(s, c, d) - α_c log π(c|s) + α_d H(π(·|s))

    Both entropies are added: arXiv:1812.05905, eq. 3, and arXiv:1910.07207, eq. 10. With h the entropies,

        dV/dqᵢ_d = π_d for the lesser of the twins (the first if they agree), else 0
        dV/dπ_d = minᵢ qᵢ_d,   dV/dh = α

    Args:
        q: values of the twins, (P, 2, B, n).
        sample: actions.
        alpha: entropy coefficients α, (P, terms).
        sign: 1 for V, -1 for -V.
    """
    value: Tensor = apply(_SoftValue, q, sample.probs, sample.entropies, alpha, sign)
    return value


class _SoftValue(Operation):
    inputs = 3

    @staticmethod
    def forward(ctx: Any, q: Tensor, probs: Tensor | None, entropies: Tensor, alpha: Tensor, sign: int) -> Tensor:
        ctx.run = run_for(q) if probs is None else None
        if ctx.run is not None:
            ctx.save_for_backward(q, None, alpha)
            ctx.sign, result = sign, np.empty(entropies.shape[:2], np.float32)
            ctx.run.soft_value(array(q), array(entropies), array(alpha), sign, result)
            return torch.from_numpy(result)
        least = torch.minimum(q[:, 0], q[:, 1])
        ctx.save_for_backward(q, probs, alpha)
        ctx.least, ctx.sign = least, sign
        mean = least.squeeze(-1) if probs is None else (probs * least).sum(-1)
        value = mean + (entropies * alpha.unsqueeze(1)).sum(-1)
        return value if sign > 0 else -value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, probs, alpha = ctx.saved_tensors
        if ctx.run is not None:
            in_q, in_entropies = np.empty(q.shape, np.float32), np.empty((*g.shape, alpha.shape[1]), np.float32)
            ctx.run.soft_value_slope(g.numpy(), array(q), array(alpha), ctx.sign, in_q, in_entropies)
            return torch.from_numpy(in_q), None, torch.from_numpy(in_entropies), None, None
        to_q = to_probs = None
        g = g.unsqueeze(-1) * ctx.sign
        if ctx.needs_input_grad[0]:
            first = (q[:, :1] <= q[:, 1:]).to(q.dtype)
            to_q = torch.cat([first, 1 - first], 1) * g.unsqueeze(1)
            to_q = to_q if probs is None else to_q * probs.unsqueeze(1)
        if ctx.needs_input_grad[1]:
            to_probs = ctx.least * g
        return to_q, to_probs, alpha.unsqueeze(1) * g, None, None


def huber(
    q: Tensor, choices: Tensor, targets: Tensor, weights: Tensor | None = None, limit: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the mean Huber losses (P,) and the errors (P, B).

    Huber (1964): the loss of an error δ = y - q(s, a) is δ²/2 for |δ| <= limit, and linear beyond. The gradient with
    respect to δ is δ clipped to ± limit, divided by B, times the weights. Errors have no gradients.

    Args:
        q: values of all choices, (P, B, n).
        choices: choices taken, (P, B).
        targets: y, (P, B).
        weights: weights of the rows, (P, B); None for equal weights.
        limit: error beyond which the loss is linear; infinity for never.
    """
    losses, errors = apply(_Huber, q, choices, targets, weights, limit)
    return losses, errors


class _Huber(Operation):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, choices: Tensor, targets: Tensor, weights: Tensor | None, limit: float
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.n = q.shape[-1]
        if (run := run_for(q)) is not None:
            members, rows, n = q.shape
            mean, found = np.empty(members, np.float32), np.empty((members, rows), np.float32)
            own, weight = np.empty((members, rows, n), np.float32), NONE if weights is None else array(weights)
            run.huber(array(q), choices.numpy(), array(targets), weight, weights is not None, limit, mean, found, own)
            ctx.save_for_backward(torch.from_numpy(own), None)
            errors = torch.from_numpy(found)
            ctx.mark_non_differentiable(errors)
            return torch.from_numpy(mean), errors
        errors = targets - _taken(q, choices)
        clipped = errors.clamp(-limit, limit)
        losses, slopes = clipped * (errors - 0.5 * clipped), clipped / -clipped.shape[1]
        if weights is not None:
            losses, slopes = weights * losses, weights * slopes
        ctx.save_for_backward(slopes, choices)
        ctx.mark_non_differentiable(errors)
        return losses.mean(1), errors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        slopes, choices = ctx.saved_tensors
        if choices is None:  # they are those in all q
            return g.view(-1, 1, 1) * slopes, None, None, None, None
        return _to_all(g.unsqueeze(1) * slopes, choices, ctx.n), None, None, None, None


class SoftSample(NamedTuple):
    """Sampled actions for network outputs (P, B, outputs).

    Attributes:
        continuous: numbers c, (P, B, k).
        probs: π of the choices, (P, B, n); None without choices (n = 1).
        entropies: -log π(c), whose mean is an entropy, and the entropy of the choices, (P, B, terms).
    """

    continuous: Tensor
    probs: Tensor | None
    entropies: Tensor


def soft_samples(
    outputs: Tensor, next_outputs: Tensor, noise: Tensor, continuous_dim: int, rows: int, weight: Tensor | None = None
) -> tuple[SoftSample, SoftSample]:
    """Sample actions for a batch, and for its next observations.

    Numbers are drawn from a squashed normal distribution, and choices count in expectation. Only the first sample has
    gradients.

        c = tanh(u), u = mean + exp(log_std) noise,   log π(c) = log N(u; mean, std) - Σ log(1 - c²)

    Haarnoja et al. (2018), arXiv:1812.05905, appendix C, eq. 26. log(1 - c²) is computed as 2 (log 2 - |u| - log(1 +
    exp(-2 |u|))), which is exact even where 1 - c² rounds to zero. With g_x the gradient with respect to x,

        g_mean = g_c (1 - c²) - 2 g_h c,   g_log_std = g_mean exp(log_std) noise + g_h,   h = -log π(c)
        g_logits = π (z - Σ π z),   z = g_π - g_h log π,   h = -Σ π log π

    The gradient that passes back is that of a mean over `rows` rows, weighted if there are weights.

    Args:
        outputs: k means, k log standard deviations, and n logits if there are choices, (P, B, 2k + n).
        next_outputs: the same for the next observations, without gradients.
        noise: standard normal numbers for both, (P, 2B, k).
        continuous_dim: k.
        rows: number by which the gradient of the outputs is divided, last.
        weight: weight of each row, (P, B).
    """
    both = apply(_SoftSamples, outputs, next_outputs, noise, continuous_dim, rows, weight)
    return SoftSample(*both[:3]), SoftSample(*both[3:])


def _compiled_samples(
    ctx: Any, outputs: Tensor, next_outputs: Tensor, noise: Tensor, rows: int, weight: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Compute the forward pass of squashed normal numbers by kernels."""
    first, samples = 0, []
    for x in (outputs, next_outputs):
        batch, k = x.shape[1], noise.shape[2]
        arrays = [np.empty((x.shape[0], batch, size), np.float32) for size in (k, k, 1)]
        ctx.run.squash(array(x), noise.numpy(), first, *arrays)
        samples.append([torch.from_numpy(x) for x in arrays])
        first += batch
    (c, spread, h), (next_c, _, next_h) = samples
    ctx.save_for_backward(c, None, spread, None, None, weight)
    ctx.outputs, ctx.rows = outputs, rows
    ctx.mark_non_differentiable(next_c, next_h)
    return c, None, h, next_c, None, next_h


class _SoftSamples(Operation):
    outputs = 3

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, next_outputs: Tensor, noise: Tensor, k: int, rows: int, weight: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)
        batch = outputs.shape[1]
        ctx.run = run_for(outputs) if k and outputs.shape[-1] == 2 * k else None
        if ctx.run is not None:
            return _compiled_samples(ctx, outputs, next_outputs, noise, rows, weight)
        both = torch.cat([outputs, next_outputs], 1)
        c, log_std, logits = both.split([k, k, both.shape[-1] - 2 * k], -1)
        spread = probs = log_probs = None
        entropies = []
        if k:
            clamped = log_std.clamp(*LOG_STD_LIMITS)
            spread = clamped.exp() * noise
            u = c + spread
            c, size = torch.tanh(u), u.abs()
            squash = ((-2 * size).exp() + 1).log() + size  # log 2 - log(1 - c²) / 2
            terms = (noise * noise * 0.5 + clamped).sub_(squash, alpha=2)
            entropies.append(terms.sum(-1) + k * (0.5 * LOG_2_PI + 2 * math.log(2)))
        if logits.shape[-1]:
            log_probs = log_softmax(logits)
            probs = log_probs.exp()
            entropies.append(-(probs * log_probs).sum(-1))

        def halves(x: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
            return (None, None) if x is None else (x[:, :batch].contiguous(), x[:, batch:].contiguous())

        (c, next_c), (probs, next_probs), (h, next_h) = map(halves, (c, probs, torch.stack(entropies, -1)))
        ctx.save_for_backward(c, log_std[:, :batch], halves(spread)[0], probs, halves(log_probs)[0], weight)
        ctx.rows = rows
        ctx.mark_non_differentiable(*(x for x in (next_c, next_probs, next_h) if x is not None))
        return c, probs, h, next_c, next_probs, next_h

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, g_c: Tensor | None, g_probs: Tensor | None, g_entropies: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        c, log_std, spread, probs, log_probs, weight = ctx.saved_tensors
        if ctx.run is not None:
            given = ((g_c, c.shape[2]), (g_entropies, 1))
            g_c, g_entropies = (c.new_zeros(*c.shape[:2], n) if g is None else g for g, n in given)
            result, weights = np.empty(ctx.outputs.shape, np.float32), NONE if weight is None else array(weight)
            arrays = (array(x) for x in (g_c, g_entropies, c, ctx.outputs, spread))
            ctx.run.squash_slope(*arrays, weights, weight is not None, ctx.rows, result)
            return torch.from_numpy(result), *[None] * 5
        gradients = []
        if spread is not None:
            g_entropy = 0 if g_entropies is None else g_entropies[..., :1]
            g_mean = (0 if g_c is None else g_c * (1 - c * c)) - 2 * g_entropy * c
            g_log_std = g_mean * spread + g_entropy
            gradients += [g_mean, _hardtanh_backward(g_log_std, log_std, *LOG_STD_LIMITS)]
        if probs is not None:
            g_entropy = 0 if g_entropies is None else g_entropies[..., -1:]
            z = (0 if g_probs is None else g_probs) - g_entropy * log_probs
            gradients.append(probs * (z - (probs * z).sum(-1, keepdim=True)))
        g = torch.cat(gradients, -1) if len(gradients) > 1 else gradients[0]
        g = g if weight is None else g * weight.unsqueeze(-1)
        return g / ctx.rows, None, None, None, None, None


def state_dependent_log_std(log_std: Tensor, z: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the log standard deviations ½ log v of state-dependent noise.

        v = Σ_j σ_j² z_j²,   d(½ log v)/dlog σ_j = σ_j² z_j² / v

    The results are (P, B, k): with gradients for the first `rows` rows, then without for the others. log σ is (P, L,
    k). z (P, B, L) gets no gradient: Raffin et al. (2022), arXiv:2005.05719, section 3.
    """
    learned, others = apply(_StateDependentLogStd, log_std, z, rows)
    return learned, others


class _StateDependentLogStd(Operation):
    @staticmethod
    def forward(ctx: Any, log_std: Tensor, z: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(log_std, z)
        ctx.rows = rows
        result = 0.5 * variance(log_std, z).log()
        learned, others = result[:, :rows], result[:, rows:]
        ctx.mark_non_differentiable(others)
        return learned, others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Tensor, None, None]:
        log_std, z = ctx.saved_tensors
        z, k = z[:, : ctx.rows], g.shape[-1]
        ratio = functional.pad(g / variance(log_std, z), (0, int(k == 1)))  # see Exactness in mlp.py
        squares = torch.bmm((z * z).transpose(1, 2), ratio)[..., :k]
        return squares * (2 * log_std).exp(), None, None
