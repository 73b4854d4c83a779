"""Multilayer perceptrons that act, for any number of rows."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar, TypeGuard

import numpy as np
import torch
from torch import Tensor

from ..compiled.loading import kernels_of
from ..compiled.records import ACTIVATION_NUMBERS, Perceptrons, RunningMoments
from .mlp import MLP, Parameters
from .renorm import RenormMLP

# Activations of kernels of replay learning: those whose slopes follow from their values.
REPLAYED = {name: number for name, number in ACTIVATION_NUMBERS.items() if name != "silu"}
NO_MOMENTS = RunningMoments(False, *[np.empty((0, 0), np.float32)] * 2)


class ActingMLP:
    """An `MLP` without gradients."""

    scratch: ClassVar[tuple[str, ...]] = ("_views", "_net")

    def __init__(self, net: MLP, parameters: Parameters):
        self._views, self._net = parameters.views, net

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last hidden activations, each (P, N, ...).

        x is (P, N, inputs).
        """
        rows = x.shape[1]
        if rows == 1:  # see Exactness in mlp.py
            x = torch.cat([x, x], 1)
        out, z = self._net.run(self._views, x)
        return out[:, :rows], z[:, :rows]


class CompiledActingMLP(ActingMLP):
    """An `ActingMLP` computed by a kernel."""

    scratch = (*ActingMLP.scratch, "_run", "_form")

    def __init__(self, run: ModuleType, net: MLP, parameters: Parameters):
        """Look up the layers; `run` are the kernels."""
        super().__init__(net, parameters)
        self._run, self._form = run, perceptrons(net, parameters.vector)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        members, rows, inputs = x.shape
        if members > len(self._form.vector) or inputs != self._form.sizes[0]:
            raise ValueError(f"a perceptron's kernel has no room for {tuple(x.shape)}")  # it does not check bounds
        hidden, out = (torch.empty(members, rows, size) for size in self._net.sizes[-2:])
        self._run.infer(x.contiguous().numpy(), self._form, hidden.numpy(), out.numpy())
        return out, hidden


def acting_mlp(net: MLP, parameters: Parameters) -> ActingMLP:
    """Return an `ActingMLP`, computed by a kernel if it covers the network."""
    run = kernels_of(parameters.vector) if is_replayed(net) else None
    return ActingMLP(net, parameters) if run is None else CompiledActingMLP(run, net, parameters)


def is_replayed(net: MLP | None) -> TypeGuard[MLP]:
    """Return whether kernels of replay learning cover a network."""
    return net is not None and type(net) in (MLP, RenormMLP) and len(net.sizes) > 2 and net.activation_name in REPLAYED


def perceptrons(net: MLP, vector: Tensor, gradient: Tensor | None = None) -> Perceptrons:
    """Return networks of parameters (P, D) as kernels take them.

    Gradients (P, D) are filled in.
    """
    moments = NO_MOMENTS
    if isinstance(net, RenormMLP):
        moments = RunningMoments(True, net.moments.vector.numpy(), net.moments.steps.numpy())
    form = np.array(net.sizes, np.int64), REPLAYED[net.activation_name], moments
    return Perceptrons(vector.numpy(), (vector if gradient is None else gradient).numpy(), *form)
