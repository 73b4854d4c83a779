"""Kernels for few inputs, few outputs, or few rows.

For products this narrow, loops are faster than a matrix library.
"""

from __future__ import annotations

import numpy as np

from .layers import ZERO, F, back, dot, inner, kernel, perceptron


@inner()
def columns_of(weights):
    """Return weights (units, outputs) transposed."""
    units, outputs = weights.shape
    columns = np.empty((outputs, units), F)
    for j in range(outputs):
        for k in range(units):
            columns[j, k] = weights[k, j]
    return columns


@kernel("void(f4[:,:,:], f4[:,:,:], i8, f4[:,:,:])")
def join(x, extra, copies, out):
    """Concatenate inputs and further numbers, and repeat them for each copy.

    Both are (P, B, ...); the result is (P * copies, B, ...).
    """
    members, rows, n = x.shape
    more = extra.shape[2]
    for p in range(members):
        for c in range(copies):
            to = out[p * copies + c]
            for r in range(rows):
                for j in range(n):
                    to[r, j] = x[p, r, j]
                for j in range(more):
                    to[r, n + j] = extra[p, r, j]


@kernel("void(f4[:,:,::1], f4[:,:,:], f4[:,:,:], f4[:,:,:])")
def head(h, weights, biases, out):
    """Fill in the outputs h W + b of the first rows."""
    members, rows, outputs = out.shape
    for p in range(members):
        w = columns_of(weights[p])
        for r in range(rows):
            for j in range(outputs):
                out[p, r, j] = dot(h[p, r], w[j]) + biases[p, 0, j]


@kernel("void(f4[:,:,:], f4[:,:,::1], f4[:,:,:], f4[:,:,::1], f4[:,:,:], f4[:,:,:], f4[:,:,:], i8, b1)")
def head_slope(g, h, weights, to_h, to_weights, to_biases, to_before, kind, learn):
    """Propagate slopes of outputs to the inputs of the activation.

    Slopes g are (P, B, outputs), and h are the activation's results. With `learn`, also fill in the gradients in the
    weights, their biases, and the biases before the activation.
    """
    members, _, outputs = g.shape
    units = h.shape[2]
    d_weights, d_biases, d_before = np.empty((outputs, units), F), np.empty(outputs, F), np.empty(units, F)
    for p in range(members):
        w = columns_of(weights[p])
        d_weights[:], d_biases[:], d_before[:] = ZERO, ZERO, ZERO
        back(g[p], w, h[p], h[p], to_h[p], d_weights, d_biases, d_before, kind)
        if learn:
            for j in range(outputs):
                to_biases[p, 0, j] = d_biases[j]
                for k in range(units):
                    to_weights[p, k, j] = d_weights[j, k]
            to_before[p, 0, :] = d_before


@kernel("void(f4[:,:,::1], f4[:,:,:], i8, i8, f4[:,:,::1])")
def to_inputs(g, weights, first, copies, out):
    """Propagate slopes of a first layer's products to its inputs.

    Slopes g are (P * copies, B, units). Only the inputs from `first` on are needed. The copies of a network share their
    inputs, so their slopes are summed.
    """
    members, rows, inputs = out.shape
    w = np.empty((copies, inputs, g.shape[2]), F)
    for p in range(members):
        own = p * copies
        for c in range(copies):
            for j in range(inputs):
                w[c, j] = weights[own + c, first + j]
        for r in range(rows):
            for j in range(inputs):
                total = ZERO
                for c in range(copies):
                    total += dot(g[own + c, r], w[c, j])
                out[p, r, j] = total


@kernel("void(f4[:,:,:], f4[:,::1], i8[::1], i8[::1], i8, f4[:,:,::1], f4[:,:,::1])")
def infer(x, vector, sizes, starts, kind, hidden, out):
    """Fill in last hidden units and outputs for rows (P, N, inputs)."""
    members, rows = x.shape[:2]
    units, outputs = sizes[-2], sizes[-1]
    for p in range(members):
        own, first = vector[p], starts[-1]
        h = perceptron(own, sizes, starts, np.ascontiguousarray(x[p]), kind)
        w = columns_of(own[first : first + units * outputs].reshape(units, outputs))
        for r in range(rows):
            hidden[p, r] = h[r]
            for j in range(outputs):
                out[p, r, j] = dot(h[r], w[j]) + own[first + units * outputs + j]
