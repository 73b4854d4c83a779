"""Loops over the units of a layer.

Every kernel computes one member after the other by the same loop, so a member's result does not depend on P. How a
number is rounded depends only on its place in a row, not on the row's place in memory.

Notation, here and in the other kernels: P members, B rows, D numbers in a member's parameter vector. `start` is the
place in the vector where a layer's parameters begin: weights (inputs, outputs), then biases. A slope is a derivative of
the loss.
"""

from __future__ import annotations

import numpy as np

from .decorators import inner

F = np.float32
ZERO, ONE, HALF = F(0.0), F(1.0), F(0.5)
TANH, ELU, SILU = 0, 2, 3  # activations; any other number is ReLU
# tanh x = x P(x²) / Q(x²) on [-9, 9], to which x is clipped, with a relative error of 2e-8 before rounding.
P1, P2, P3, P4 = F(0.13381026685237885), F(0.003495588432997465), F(2.060908627754543e-05), F(1.3354665817644218e-08)
Q1, Q2, Q3, Q4 = F(0.4671434164047241), F(0.025876984000205994), F(0.00032856353209353983), F(7.776559982630715e-07)
NINE = F(9.0)
# exp x = 2^n exp r with n = round(x / ln 2), |r| <= ln 2 / 2 and exp r = 1 + r + r² E(r), with a relative error of 4e-9
# before rounding. Adding ROUND puts n into the last bits. ln 2 is split in two parts; n times the first part is exact.
E0, E1, E2 = F(0.4999999403953552), F(0.1666652113199234), F(0.04166838899254799)
E3, E4 = F(0.00836874544620514), F(0.0013814540579915047)
LEAST, MOST = F(-87.0), F(88.0)  # in between, 2^n is a normal number
PER_LN_2, LN_2, REST_OF_LN_2 = F(1.4426950408889634), F(0.693145751953125), F(1.4286068203094172e-06)
ROUND, BITS, ONE_AS_BITS = F(1.5 * 2**23), np.int32(23), np.int32(0x3F800000)


@inner(inline="always")
def tanh(x):
    """Return tanh x as a vectorizable quotient; NaN stays NaN."""
    x = NINE if x > NINE else x
    x = -NINE if x < -NINE else x
    y = x * x
    x = x * ((((P4 * y + P3) * y + P2) * y + P1) * y + ONE)
    x = x / ((((Q4 * y + Q3) * y + Q2) * y + Q1) * y + ONE)
    x = ONE if x > ONE else x
    return -ONE if x < -ONE else x


@inner(inline="always")
def exp(x):
    """Return exp x, vectorizable, for x clipped to [-87, 88].

    The relative error is at most 9e-8. NaN stays NaN.
    """
    x = MOST if x > MOST else x
    x = LEAST if x < LEAST else x
    z = np.float32(x * PER_LN_2 + ROUND)
    n = z - ROUND
    r = (x - n * LN_2) - n * REST_OF_LN_2
    y = (((E4 * r + E3) * r + E2) * r + E1) * r + E0
    scale = np.int32((z.view(np.int32) << BITS) + ONE_AS_BITS)
    return (r * r * y + r + ONE) * scale.view(np.float32)


@inner(fastmath={"reassoc", "contract"})
def dot(a, b):
    """Return the inner product of two rows."""
    total = ZERO
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@inner(fastmath={"contract"}, forceinline=True)
def add_biases(h, biases, activation):
    """Add biases to rows and apply the activation, in place.

    The activation is chosen outside the loops: a choice in every row would take several times as long as ReLU itself.
    """
    rows, units = h.shape
    if activation == TANH:
        for r in range(rows):
            for k in range(units):
                h[r, k] = tanh(h[r, k] + biases[k])
    elif activation == ELU:
        for r in range(rows):
            for k in range(units):
                x = h[r, k] + biases[k]
                y = exp(ZERO if x > ZERO else x) - ONE
                h[r, k] = x if x > ZERO else y
    elif activation == SILU:
        for r in range(rows):
            for k in range(units):
                x = h[r, k] + biases[k]
                h[r, k] = x / (ONE + exp(-x))
    else:
        for r in range(rows):
            for k in range(units):
                x = h[r, k] + biases[k]
                h[r, k] = ZERO if x < ZERO else x


@inner(fastmath={"contract"}, forceinline=True)
def add_biases_for_slopes(h, at, biases, activation):
    """Do the same as `add_biases`, and keep SiLU's slopes in `at`.

    The slopes of the other activations follow from their values in h, so `at` may then be h.
    """
    rows, units = h.shape
    if activation == SILU:
        for r in range(rows):
            for k in range(units):
                x = h[r, k] + biases[k]
                z = exp(-x)
                sigmoid = ONE / (ONE + z)
                y = x * sigmoid
                h[r, k] = y
                at[r, k] = sigmoid + y * (z * sigmoid)
    else:
        add_biases(h, biases, activation)


@inner(fastmath={"contract"}, forceinline=True)
def through(g, h, total, activation):
    """Multiply rows g by the activation's slopes.

    Their sum is added to the total. h has the activation's values or, for SiLU, its slopes.
    """
    rows, units = g.shape
    if activation == TANH:
        for r in range(rows):
            for k in range(units):
                x = g[r, k] * (ONE - h[r, k] * h[r, k])
                g[r, k] = x
                total[k] += x
    elif activation == ELU:
        for r in range(rows):
            for k in range(units):
                x = g[r, k] * (ONE if h[r, k] > ZERO else h[r, k] + ONE)
                g[r, k] = x
                total[k] += x
    elif activation == SILU:
        for r in range(rows):
            for k in range(units):
                x = g[r, k] * h[r, k]
                g[r, k] = x
                total[k] += x
    else:
        for r in range(rows):
            for k in range(units):
                x = g[r, k] if h[r, k] > ZERO else ZERO
                g[r, k] = x
                total[k] += x


@inner()
def weights_of(vector, start, inputs, outputs):
    """Return a layer's weights (outputs, inputs), and its biases."""
    weights = np.empty((outputs, inputs), F)
    for k in range(inputs):
        for j in range(outputs):
            weights[j, k] = vector[start + k * outputs + j]
    return weights, vector[start + inputs * outputs : start + (inputs + 1) * outputs]


@inner()
def put_weights(gradient, start, weights, biases):
    """Copy a layer's gradient, weights (outputs, inputs), into a member's."""
    outputs, inputs = weights.shape
    for k in range(inputs):
        for j in range(outputs):
            gradient[start + k * outputs + j] = weights[j, k]
    for j in range(outputs):
        gradient[start + inputs * outputs + j] = biases[j]


@inner(fastmath={"contract"}, forceinline=True)
def back(slopes, weights, h, at, g, d_weights, d_biases, d_hidden, activation):
    """Propagate slopes of a layer's outputs through its inputs h.

    h are the results of an activation, whose slopes follow from `at`. The slopes in its inputs are filled into g. The
    gradients in the layer's weights and biases, and in the biases before the activation, are summed over the rows.
    """
    rows, units = g.shape
    for r in range(rows):
        for k in range(units):
            g[r, k] = ZERO
        for j in range(len(weights)):
            x = slopes[r, j]
            d_biases[j] += x
            for k in range(units):
                g[r, k] += x * weights[j, k]
                d_weights[j, k] += x * h[r, k]
    through(g, at, d_hidden, activation)
