"""Multilayer perceptrons that act, for any number of rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..compiled.loading import kernels_of
from ..compiled.records import ACTIVATION_NUMBERS
from .mlp import MLP, Parameters, affine

# Activations of kernels of replay learning: those whose slopes follow from their values.
REPLAYED = {name: number for name, number in ACTIVATION_NUMBERS.items() if name != "silu"}


class ActingMLP:
    """An `MLP` without gradients, computed by a kernel or by torch."""

    scratch = ("_layers", "_run", "_vector")

    def __init__(self, net: MLP, parameters: Parameters):
        """Look up the layers, which the parameters begin with."""
        self.sizes, self._layers, self._net = np.array(net.sizes, np.int64), net.layers(parameters.views), net
        covered = type(net) is MLP and net.activation_name in REPLAYED and len(net.sizes) > 2
        self._run = kernels_of(parameters.vector) if covered else None
        self._vector = None if self._run is None else parameters.vector.numpy()

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last hidden activations, each (P, N, ...).

        x is (P, N, inputs).
        """
        members, rows, inputs = x.shape
        if self._run is None or self._vector is None:
            if rows == 1:  # see Exactness in mlp.py
                x = torch.cat([x, x], 1)
            z = self._net.hidden(self._layers, x)
            return affine(z, *self._layers[-1])[:, :rows], z[:, :rows]
        if members > len(self._vector) or inputs != self.sizes[0]:
            raise ValueError(f"a perceptron's kernel has no room for {tuple(x.shape)}")  # it does not check bounds
        hidden, out = (torch.empty(members, rows, int(size)) for size in self.sizes[-2:])
        form = (self._vector, self.sizes, REPLAYED[self._net.activation_name])
        self._run.infer(x.contiguous().numpy(), *form, hidden.numpy(), out.numpy())
        return out, hidden
