"""Kernels of perceptrons whose layers' inputs may be renormalized over a batch.

`networks.renorm` defines what they compute. A renormalized layer is a plain one of standardized inputs, since scale,
shift and corrections are folded into its weights:

    x̂ = (x - μ) / σ,   a = γ r,   c = γ d + β,   (a x̂ + c) W + b = x̂ W' + b',   W' = a W,   b' = c W + b

From the gradients in W' and b' follow all others, and the sums over rows that gradients of a batch's moments need. With
slopes g in the inputs x̂ of a layer, for each of its inputs:

    Σ g = a W · db',   Σ g x̂ = a W · dW',   dx = (g - Σ g / B - x̂ Σ g x̂ / B) / σ

A pass keeps, in one array per network: hidden units, standardized inputs, folded parameters, and (μ, 1/σ, r, d) of each
layer's inputs. Plain networks have the units only.
"""

from __future__ import annotations

import math

import numpy as np

from .decorators import inner, kernel
from .layers import ONE, ZERO, F, add_biases, dot, through
from .perceptrons import (
    AT_ONCE,
    CONSTANT,
    FIRST,
    backward_member,
    forward_member,
    head_of,
    last_units,
    layer_at,
    move_to_front,
    number_of_units,
    outputs_of,
    put,
    rows_of,
)
from .products import multiply, transpose
from .records import Perceptrons

# those of `networks.renorm`
WARMUP, MOMENTUM, EPS, MOST_SCALE, LEAST_SCALE, MOST_SHIFT = F(100_000), F(0.01), F(1e-3), F(3.0), F(1 / 3), F(5.0)


@inner()
def weights_in(sizes):
    """Return the number of weights and biases; scales and shifts follow them."""
    return head_of(sizes, FIRST) + (sizes[-2] + 1) * sizes[-1]


@inner()
def room_of(nets, rows):
    """Return the size of what a pass of these rows keeps."""
    units = number_of_units(nets.sizes)
    if not nets.moments.active:
        return rows * units
    return rows * units + (rows + 4) * (nets.sizes[0] + units) + weights_in(nets.sizes)


@inner()
def parts_of(sizes, rows, memory):
    """Return the parts of what a pass keeps."""
    units = number_of_units(sizes)
    inputs = sizes[0] + units
    standard = rows * units
    statistics = standard + rows * inputs
    folded = statistics + 4 * inputs
    return memory[:standard], memory[standard:statistics], memory[statistics:folded], memory[folded:]


@inner(fastmath={"contract"})
def measure(x, mean, variance, learn, warm, statistics):
    """Fill in (μ, 1/σ, r, d) of the columns of x.

    Learning takes the moments of x, and moves the running ones.
    """
    rows, inputs = x.shape
    for j in range(inputs):
        statistics[0, j], statistics[1, j], statistics[2, j], statistics[3, j] = mean[j], variance[j], ONE, ZERO
    if learn:
        own_mean, own_variance = np.zeros(inputs, F), np.zeros(inputs, F)
        for r in range(rows):
            for j in range(inputs):
                own_mean[j] += x[r, j]
        for j in range(inputs):
            own_mean[j] /= F(rows)
        for r in range(rows):
            for j in range(inputs):
                own_variance[j] += (x[r, j] - own_mean[j]) * (x[r, j] - own_mean[j])
        for j in range(inputs):
            own_variance[j] /= F(rows)
            if warm:
                std = F(math.sqrt(variance[j] + EPS))
                scale, shift = F(math.sqrt(own_variance[j] + EPS)) / std, (own_mean[j] - mean[j]) / std
                scale = MOST_SCALE if scale > MOST_SCALE else scale
                shift = MOST_SHIFT if shift > MOST_SHIFT else shift
                statistics[2, j] = LEAST_SCALE if scale < LEAST_SCALE else scale
                statistics[3, j] = -MOST_SHIFT if shift < -MOST_SHIFT else shift
            statistics[0, j], statistics[1, j] = own_mean[j], own_variance[j]
            mean[j] += MOMENTUM * (own_mean[j] - mean[j])
            variance[j] += MOMENTUM * (own_variance[j] - variance[j])
    for j in range(inputs):
        statistics[1, j] = ONE / F(math.sqrt(statistics[1, j] + EPS))


@inner(fastmath={"contract"})
def fold(weights, biases, affine, statistics, to_weights, to_biases):
    """Fill in W' and b' for scales and shifts (2, inputs)."""
    inputs, outputs = weights.shape
    put(biases, to_biases, 0)
    for k in range(inputs):
        a, c = affine[0, k] * statistics[2, k], affine[0, k] * statistics[3, k] + affine[1, k]
        for j in range(outputs):
            to_weights[k, j] = a * weights[k, j]
            to_biases[j] += c * weights[k, j]


@inner(fastmath={"contract"})
def unfold(weights, d_biases, affine, statistics, rows, to_weights, to_affine, means):
    """Turn a gradient in W' into those in W, scales and shifts.

    The means (2, inputs) get those of slopes in x̂, and of their products with x̂.
    """
    inputs, outputs = weights.shape
    for k in range(inputs):
        r, d = statistics[2, k], statistics[3, k]
        a, c = affine[0, k] * r, affine[0, k] * d + affine[1, k]
        to_a, to_c = dot(weights[k], to_weights[k]), dot(weights[k], d_biases)
        means[0, k], means[1, k] = a * to_c / F(rows), a * to_a / F(rows)
        to_affine[0, k], to_affine[1, k] = r * to_a + d * to_c, to_c
        for j in range(outputs):
            to_weights[k, j] = a * to_weights[k, j] + c * d_biases[j]


@inner(fastmath={"contract"})
def forward_renormed(nets, m, x, learn, memory, out):
    """Do the same as `forward` for a renormalized network."""
    sizes, activation, rows, vector = nets.sizes, nets.activation, len(x), nets.vector[m]
    units, standard, statistics, folded = parts_of(sizes, rows, memory)
    running, warm = nets.moments.numbers[m], nets.moments.steps[m, 0] > WARMUP
    start, at, affine_at, before = FIRST, FIRST, weights_in(sizes), x
    variances = sizes[0] + number_of_units(sizes)
    for i in range(len(sizes) - 1):
        inputs, outputs = sizes[i], sizes[i + 1]
        weights, biases = layer_at(vector, start, inputs, outputs)
        own_weights, own_biases = layer_at(folded, start, inputs, outputs)
        layer_statistics, normal = rows_of(statistics, 4 * at, 4, inputs), rows_of(standard, rows * at, rows, inputs)
        mean, variance = running[at : at + inputs], running[variances + at : variances + at + inputs]
        measure(before, mean, variance, learn, warm, layer_statistics)
        fold(weights, biases, rows_of(vector, affine_at + 2 * at, 2, inputs), layer_statistics, own_weights, own_biases)
        is_last = i == len(sizes) - 2
        h = rows_of(units, rows * (at + inputs - sizes[0]), 0 if is_last else rows, outputs)
        for r in range(0, rows, AT_ONCE):
            end = min(r + AT_ONCE, rows)
            for row in range(r, end):
                for j in range(inputs):
                    normal[row, j] = (before[row, j] - layer_statistics[0, j]) * layer_statistics[1, j]
            if not is_last:
                multiply(normal[r:end], own_weights, h[r:end])
                add_biases(h[r:end], own_biases, activation)
        if is_last:
            outputs_of(normal, own_weights, own_biases, out)
        before = h
        start += (inputs + 1) * outputs
        at += inputs
    if learn:
        nets.moments.steps[m, 0] += ONE


@inner(fastmath={"contract"})
def backward_renormed(nets, m, g, learn, memory, slopes):
    """Do the same as `backward` for a renormalized network."""
    sizes, rows, vector, gradient = nets.sizes, len(g), nets.vector[m], nets.gradient[m]
    units, standard, statistics, folded = parts_of(sizes, rows, memory)
    start, at, affine_at = head_of(sizes, FIRST), sizes[0] + number_of_units(sizes), weights_in(sizes)
    d_biases = np.zeros(sizes[-1], F)
    for r in range(rows):
        for j in range(sizes[-1]):
            d_biases[j] += g[r, j]
    for i in range(len(sizes) - 2, -1, -1):
        inputs, outputs = sizes[i], sizes[i + 1]
        at -= inputs
        own_weights, _ = layer_at(folded, start, inputs, outputs)
        layer_statistics, normal = rows_of(statistics, 4 * at, 4, inputs), rows_of(standard, rows * at, rows, inputs)
        means = np.zeros((2, inputs), F)
        if learn:
            weights, _ = layer_at(vector, start, inputs, outputs)
            to_weights, _ = layer_at(gradient, start, inputs, outputs)
            multiply(normal.T, g, to_weights)
            put(d_biases, gradient, start + inputs * outputs)
            affine = rows_of(vector, affine_at + 2 * at, 2, inputs)
            to_affine = rows_of(gradient, affine_at + 2 * at, 2, inputs)
            unfold(weights, d_biases, affine, layer_statistics, rows, to_weights, to_affine, means)
        if i > 0:
            first, turned = rows * (at - sizes[0]), np.empty((outputs, inputs), F)
            to, h = rows_of(slopes, first, rows, inputs), rows_of(units, first, rows, inputs)
            transpose(own_weights, turned)
            d_biases = np.zeros(inputs, F)
            for r in range(0, rows, AT_ONCE):
                end = min(r + AT_ONCE, rows)
                multiply(g[r:end], turned, to[r:end])
                for row in range(r, end):
                    for j in range(inputs):
                        to[row, j] = (to[row, j] - means[0, j] - normal[row, j] * means[1, j]) * layer_statistics[1, j]
                through(to[r:end], h[r:end], d_biases, nets.activation)
            g = to
            start -= (sizes[i - 1] + 1) * inputs


@inner()
def forward(nets, m, x, learn, memory, out):
    """Fill in network m's outputs for x (B, inputs).

    The memory gets what `backward` needs. Renormalized networks that learn are normalized by the batch's moments,
    others by the running ones.
    """
    if nets.moments.active:
        forward_renormed(nets, m, x, learn, memory, out)
    else:
        forward_member(x, nets.vector[m], nets.sizes, nets.activation, memory, out)


@inner()
def backward(nets, m, g, x, learn, memory, slopes):
    """Propagate slopes g of network m's outputs to all layers.

    The other arguments are those of its `forward`. With `learn`, fill in the gradient. Slopes of a plain network may be
    those of the first rows alone.
    """
    if nets.moments.active:
        backward_renormed(nets, m, g, learn, memory, slopes)
    else:
        of = nets.vector[m], nets.sizes, nets.activation
        backward_member(g, x, *of, memory, len(x), slopes, nets.gradient[m], learn)


@inner()
def keep_rows_with_slopes(nets, g, memory, chosen):
    """Move rows with slopes to the front, and return their number.

    Those without add nothing to the slopes in a plain network's inputs. The memory's rows move, too, and `chosen` (B,)
    gets the rows' places before. A renormalized network keeps all.
    """
    rows, kept, first = len(g), 0, 0
    for r in range(rows):
        some = nets.moments.active
        for j in range(g.shape[1]):
            some = some or g[r, j] != ZERO
        if some:
            chosen[kept] = r
            kept += 1
    if kept < rows:
        move_to_front(g, chosen[:kept])
        for i in range(1, len(nets.sizes) - 1):
            move_to_front(rows_of(memory, first, rows, nets.sizes[i]), chosen[:kept])
            first += rows * nets.sizes[i]
    return kept


@inner()
def to_inputs(nets, m, memory, slopes, first, chosen, out):
    """Add slopes in network m's inputs to the chosen rows.

    They are those from input `first` on, (B, ...), and follow from the first layer's, after a `backward` that did not
    learn.
    """
    sizes, rows, inputs = nets.sizes, len(chosen), out.shape[1]
    active, (_, _, statistics, folded) = nets.moments.active, parts_of(sizes, rows, memory)
    weights, _ = layer_at(folded if active else nets.vector[m], FIRST, sizes[0], sizes[1])
    g = rows_of(slopes, FIRST, rows, sizes[1])
    for r in range(rows):
        for j in range(inputs):
            scale = statistics[sizes[0] + first + j] if active else ONE
            out[chosen[r], j] += dot(g[r], weights[first + j]) * scale


@kernel("f4[:,:,::1]", Perceptrons, "f4[:,:,::1], f4[:,:,::1]")
def infer(x, nets, last, out):
    """Fill in last hidden units and outputs for x (P, N, inputs)."""
    rows = x.shape[1]
    memory = np.empty(room_of(nets, rows), F)
    for p in range(len(x)):
        forward(nets, p, x[p], CONSTANT, memory, out[p])
        h = last_units(memory, rows, nets.sizes)
        for r in range(rows):
            put(h[r], last[p, r], 0)
