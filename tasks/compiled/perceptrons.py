"""Kernels of whole multilayer perceptrons.

`sizes` are the sizes of a network's layers. The parameters lie in a member's vector layer by layer, first weights
(inputs, outputs), then biases. A batch's hidden units lie in one array per member, layer by layer, each (B, units).
"""

from __future__ import annotations

import numpy as np

from .decorators import inner
from .layers import F, add_biases, add_biases_for_slopes, back, dot, through
from .products import multiply, transpose

AT_ONCE = 48  # rows that stay in the fastest cache between their product and their activation
# Arguments of NumPy's types, since numba compiles a function once more for each literal 0 or True.
FIRST = np.int64(0)  # the start of a network that has a vector to itself
LEARN, CONSTANT = np.bool_(True), np.bool_(False)
FEW_OUTPUTS = 8  # up to this many, inner products take less time than a product of matrices


@inner()
def head_of(sizes, start):
    """Return where the last layer of a network starts."""
    for i in range(len(sizes) - 2):
        start += (sizes[i] + 1) * sizes[i + 1]
    return start


@inner()
def number_of_units(sizes):
    """Return the number of hidden units in all layers."""
    total = 0
    for i in range(1, len(sizes) - 1):
        total += sizes[i]
    return total


@inner()
def layer_at(vector, start, inputs, outputs):
    """Return the weights (inputs, outputs) and biases of a layer."""
    biases = start + inputs * outputs
    return vector[start:biases].reshape(inputs, outputs), vector[biases : biases + outputs]


@inner()
def rows_of(units, first, rows, size):
    """Return a layer's units (rows, size), which begin at `first`."""
    return units[first : first + rows * size].reshape(rows, size)


@inner(fastmath={"contract"})
def hidden(x, vector, start, sizes, activation, units, at):
    """Fill in a member's hidden units; return the last layer's.

    x are the network's inputs (B, inputs). `at` gets the values from which the activation's slopes are computed, see
    `add_biases_for_slopes`.
    """
    rows, first, before = len(x), 0, x
    for i in range(len(sizes) - 2):
        outputs = sizes[i + 1]
        weights, biases = layer_at(vector, start, sizes[i], outputs)
        h, h_at = rows_of(units, first, rows, outputs), rows_of(at, first, rows, outputs)
        for r in range(0, rows, AT_ONCE):
            end = min(r + AT_ONCE, rows)
            multiply(before[r:end], weights, h[r:end])
            add_biases_for_slopes(h[r:end], h_at[r:end], biases, activation)
        before = h
        start += (sizes[i] + 1) * outputs
        first += rows * outputs
    return before


@inner(fastmath={"contract"})
def perceptron(x, vector, start, sizes, activation):
    """Return a member's last hidden units for rows x."""
    for i in range(len(sizes) - 2):
        weights, biases = layer_at(vector, start, sizes[i], sizes[i + 1])
        h = np.empty((len(x), sizes[i + 1]), F)
        multiply(x, weights, h)
        add_biases(h, biases, activation)
        start += (sizes[i] + 1) * sizes[i + 1]
        x = h
    return x


@inner(fastmath={"contract"})
def to_hidden(x, vector, gradient, start, sizes, activation, units, at, rows, slopes, learn):
    """Propagate slopes of a member's last hidden layer to earlier ones.

    Slopes are taken before the activation. `units` and `at` belong to `rows` rows, and x and the slopes to the first of
    them. With `learn`, fill in the gradient of the hidden layers, except for the biases of the last one.

    The layers are taken from last to first. Three places move backwards with them: where the layer's parameters start,
    where its units do (`first`), and where its slopes do (`place`).
    """
    count, total = len(x), number_of_units(sizes)
    start, first, place = head_of(sizes, start), rows * total, count * total
    for i in range(len(sizes) - 3, -1, -1):
        inputs, outputs = sizes[i], sizes[i + 1]
        start -= (inputs + 1) * outputs
        place -= count * outputs
        first -= rows * outputs
        g = rows_of(slopes, place, count, outputs)
        weights, _ = layer_at(vector, start, inputs, outputs)
        to_weights, _ = layer_at(gradient, start, inputs, outputs)
        if i == 0:
            if learn:
                multiply(x.T, g, to_weights)
            return
        h, h_at = rows_of(units, first - rows * inputs, rows, inputs), rows_of(at, first - rows * inputs, rows, inputs)
        if learn:
            multiply(h[:count].T, g, to_weights)
        to, turned = rows_of(slopes, place - count * inputs, count, inputs), np.empty((outputs, inputs), F)
        transpose(weights, turned)
        to_biases = np.zeros(inputs, F)
        for r in range(0, count, AT_ONCE):
            end = min(r + AT_ONCE, count)
            multiply(g[r:end], turned, to[r:end])
            through(to[r:end], h_at[r:end], to_biases, activation)
        if learn:
            put(to_biases, gradient, start - inputs)


@inner()
def put(x, out, first):
    """Copy numbers to an array from index `first` on.

    An assignment to a slice would do, but numba takes seconds to compile its error messages into each kernel.
    """
    for i in range(len(x)):
        out[first + i] = x[i]


@inner()
def columns_of(weights):
    """Return weights (units, outputs) transposed."""
    columns = np.empty((weights.shape[1], weights.shape[0]), F)
    for j in range(len(columns)):
        for k in range(len(weights)):
            columns[j, k] = weights[k, j]
    return columns


@inner()
def outputs_of(h, weights, biases, out):
    """Fill in a last layer's outputs for hidden units h."""
    rows, outputs = out.shape
    if outputs > FEW_OUTPUTS:
        multiply(h, weights, out)
        for r in range(rows):
            for j in range(outputs):
                out[r, j] += biases[j]
        return
    w = columns_of(weights)
    for r in range(rows):
        for j in range(outputs):
            out[r, j] = dot(h[r], w[j]) + biases[j]


@inner()
def forward_member(x, vector, sizes, activation, units, out):
    """Fill in a member's hidden units and outputs, (B, ...).

    Inputs x are (B, inputs). The activation must be one whose slopes follow from the units, which SiLU's do not.
    """
    h = hidden(x, vector, FIRST, sizes, activation, units, units)
    weights, biases = layer_at(vector, head_of(sizes, FIRST), sizes[-2], sizes[-1])
    outputs_of(h, weights, biases, out)


@inner()
def last_units(units, rows, sizes):
    """Return the last hidden units (B, units) of a `forward_member`."""
    return rows_of(units, rows * (number_of_units(sizes) - sizes[-2]), rows, sizes[-2])


@inner()
def backward_member(g, x, vector, sizes, activation, units, rows, slopes, gradient, learn):
    """Propagate slopes g (B', outputs) of a member's outputs to all layers.

    They belong to the first of the inputs x, of `rows` rows of a `forward_member`, which filled in `units`. With
    `learn`, fill in the gradient. `policies.to_parameters` does the same for an actor-critic, by inner products alone.
    """
    count, outputs = g.shape
    size, total, head = sizes[-2], number_of_units(sizes), head_of(sizes, FIRST)
    weights, _ = layer_at(vector, head, size, outputs)
    to_weights, _ = layer_at(gradient, head, size, outputs)
    h, to = rows_of(units, rows * (total - size), count, size), rows_of(slopes, count * (total - size), count, size)
    d_biases, d_hidden = np.zeros(outputs, F), np.zeros(size, F)
    if outputs > FEW_OUTPUTS:
        turned = np.empty((outputs, size), F)
        transpose(weights, turned)
        multiply(g, turned, to)
        through(to, h, d_hidden, activation)
        if learn:
            multiply(h.T, g, to_weights)
            for r in range(count):
                for j in range(outputs):
                    d_biases[j] += g[r, j]
    else:
        d_weights = np.zeros((outputs, size), F)
        back(g, columns_of(weights), h, h, to, d_weights, d_biases, d_hidden, activation)
        if learn:
            transpose(d_weights, to_weights)
    if learn:
        put(d_hidden, gradient, head - size)
        put(d_biases, gradient, head + size * outputs)
    to_hidden(x[:count], vector, gradient, FIRST, sizes, activation, units, units, rows, slopes, learn)


@inner()
def move_to_front(x, chosen):
    """Move the chosen rows to the front, in place; `chosen` ascends."""
    for i in range(len(chosen)):
        put(x[chosen[i]], x[i], 0)


@inner()
def join_rows(x, extra, out):
    """Concatenate the rows of two matrices."""
    rows, n = x.shape
    for r in range(rows):
        for j in range(n):
            out[r, j] = x[r, j]
        for j in range(extra.shape[1]):
            out[r, n + j] = extra[r, j]
