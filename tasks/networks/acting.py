"""Multilayer perceptrons that act, for any number of rows."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar, TypeGuard

import numpy as np
import torch
from torch import Tensor

from ..compiled.loading import kernels_of
from ..compiled.records import ACTIVATION_NUMBERS
from .mlp import MLP, Parameters, affine

# Activations of kernels of replay learning: those whose slopes follow from their values.
REPLAYED = {name: number for name, number in ACTIVATION_NUMBERS.items() if name != "silu"}


class ActingMLP:
    """An `MLP` without gradients."""

    scratch: ClassVar[tuple[str, ...]] = ("_layers",)

    def __init__(self, net: MLP, parameters: Parameters):
        """Look up the layers, which the parameters begin with."""
        self._layers, self._net = net.layers(parameters.views), net

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last hidden activations, each (P, N, ...).

        x is (P, N, inputs).
        """
        rows = x.shape[1]
        if rows == 1:  # see Exactness in mlp.py
            x = torch.cat([x, x], 1)
        z = self._net.hidden(self._layers, x)
        return affine(z, *self._layers[-1])[:, :rows], z[:, :rows]


class CompiledActingMLP(ActingMLP):
    """An `ActingMLP` computed by a kernel."""

    scratch = ("_layers", "_run", "_form")

    def __init__(self, run: ModuleType, net: MLP, parameters: Parameters):
        """Look up the layers; `run` are the kernels."""
        super().__init__(net, parameters)
        self._run, self.sizes = run, np.array(net.sizes, np.int64)
        self._form = (parameters.vector.numpy(), self.sizes, REPLAYED[net.activation_name])

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        members, rows, inputs = x.shape
        if members > len(self._form[0]) or inputs != self.sizes[0]:
            raise ValueError(f"a perceptron's kernel has no room for {tuple(x.shape)}")  # it does not check bounds
        hidden, out = (torch.empty(members, rows, int(size)) for size in self.sizes[-2:])
        self._run.infer(x.contiguous().numpy(), *self._form, hidden.numpy(), out.numpy())
        return out, hidden


def acting_mlp(net: MLP, parameters: Parameters) -> ActingMLP:
    """Return an `ActingMLP`, computed by a kernel if it covers the network."""
    run = kernels_of(parameters.vector) if is_replayed(net) else None
    return ActingMLP(net, parameters) if run is None else CompiledActingMLP(run, net, parameters)


def is_replayed(net: MLP | None) -> TypeGuard[MLP]:
    """Return whether kernels of replay learning cover a network."""
    return type(net) is MLP and len(net.sizes) > 2 and net.activation_name in REPLAYED
