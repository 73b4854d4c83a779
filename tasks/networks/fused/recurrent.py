"""Fused recurrent cores, with a hand-written gradient through time.

A core's computation over whole sequences is one autograd node. Torch's autograd makes several times as many small
arrays, and small networks spend their time on its calls. All gates of a step are one tanh: σ(x) = ½ + ½ tanh(½ x).
Halving is exact, so the weights are halved once.

Notation: M members, B sequences, T steps, W outputs, S numbers in a state, G = 4 W (LSTM) or 3 W (GRU) gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ..mlp import affine
from ..recurrent import Core

Saved = dict[str, Any]


class FusedCore:
    """A `Core` over whole sequences, as one autograd node.

    B and W must be at least 2 (see Exactness in mlp.py).
    """

    sigmoids: int  # number of gates with a sigmoid; they come first

    def __init__(self, core: Core):
        self.core, self.width = core, core.width

    def __call__(
        self, vector: Tensor, tensors: Mapping[str, Tensor], x: Tensor, begins: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs of the learning members, and of the others.

        The former are (M', B, T, W); the latter have no gradients.

        Args:
            vector: all parameters of the core, (M', numbers), of the first M' members, which learn.
            tensors: the same parameters of all M members, by name.
            x: inputs, (M, B, T, inputs); those of the learning members get a gradient if they require one.
            begins: see `Core`.
            state: see `Core`.
        """
        learned, others = _CoreFunction.apply(vector, self, tensors, x, begins, state)
        return learned, others

    def run(self, tensors: Mapping[str, Tensor], x: Tensor, begins: Tensor, state: Tensor) -> tuple[Tensor, Saved]:
        """Return the outputs (M, B, T, W), and values for `back`.

        Their "state" is the last state, (M, B, S).
        """
        weight, hidden = (tensors[f"{self.core.prefix}.{part}.weight"] for part in ("input", "hidden"))
        bias = tensors.get(f"{self.core.prefix}.hidden.bias")
        batch, steps = x.shape[1:3]
        scale = torch.ones(hidden.shape[-1], device=x.device, dtype=x.dtype)
        scale[: self.sigmoids * self.width] = 0.5
        x = x.transpose(1, 2).flatten(1, 2)  # [M, B, T, D] -> [M, T * B, D]
        drive = affine(x, weight, tensors[f"{self.core.prefix}.input.bias"]).mul_(scale)
        gates = drive.unflatten(1, (steps, batch)).transpose(0, 1).contiguous()  # [T, M, B, G]
        keep = (1 - begins).permute(2, 0, 1).unsqueeze(-1).contiguous()
        resets = begins.any(1).any(0).tolist()  # elsewhere keep is 1 and changes nothing
        saved = self._run(gates, hidden * scale, None if bias is None else bias * scale, keep, resets, state)
        outputs = torch.stack(saved.pop("outputs")).permute(1, 2, 0, 3)
        return outputs, {
            **saved,
            "x": x,
            "gates": gates,
            "keep": keep,
            "resets": resets,
            "hidden": hidden,
            "weight": weight,
        }

    def back(self, saved: Saved, g: Tensor, to_inputs: bool) -> tuple[Tensor, Tensor | None]:
        """Return the gradients with respect to parameters and inputs.

        Args:
            saved: values that `run` returned.
            g: gradient with respect to the outputs, (M', B, T, W).
            to_inputs: whether the inputs' gradient is needed.

        Returns:
            The parameters' gradient (M', numbers), and the inputs' (M, B, T, inputs) or None.
        """
        members = len(g)
        gates = saved["gates"][:, :members].unflatten(-1, (-1, self.width)).unbind(-2)
        g = g.permute(2, 0, 1, 3).contiguous()
        before = torch.stack(saved["before"])[:, :members]
        to_drive, to_hidden = self._back(saved, g, gates, before, saved["hidden"][:members].transpose(1, 2))
        rows = _rows(to_drive)
        x = functional.pad(saved["x"][:members], (0, int(saved["x"].shape[-1] == 1)))  # see Exactness in mlp.py
        of_input = torch.bmm(x.transpose(1, 2), rows)[:, : self.core.inputs]
        hidden_rows = rows if to_hidden is to_drive else _rows(to_hidden)
        of_hidden = torch.bmm(_rows(before).transpose(1, 2), hidden_rows)
        parts = [of_input.flatten(1), rows.sum(1), of_hidden.flatten(1)]
        of_inputs = self._to_inputs(saved, rows, g.shape[:1] + g.shape[2:3]) if to_inputs else None
        return torch.cat(parts if to_hidden is to_drive else [*parts, hidden_rows.sum(1)], 1), of_inputs

    def _to_inputs(self, saved: Saved, rows: Tensor, steps_and_batch: Sequence[int]) -> Tensor:
        """Return the inputs' gradient, 0 for members that do not learn."""
        weight = saved["weight"][: len(rows)].transpose(1, 2)
        g = torch.bmm(rows, weight).unflatten(1, steps_and_batch).transpose(1, 2)  # [M', T * B, D] -> [M', B, T, D]
        return torch.cat([g, g.new_zeros(len(saved["weight"]) - len(g), *g.shape[1:])])

    def _run(
        self, gates: Tensor, weight: Tensor, bias: Tensor | None, keep: Tensor, resets: list[bool], state: Tensor
    ) -> Saved:
        """Compute the gates in place, and return every step's values.

        `gates` (T, M, B, G) hold the inputs' contribution when called.
        """
        raise NotImplementedError

    def _back(
        self, saved: Saved, g: Tensor, gates: tuple[Tensor, ...], before: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients with respect to both contributions to the gates.

        The first is that of the inputs, the second that of the hidden weights, each (T, M, B, G).
        """
        raise NotImplementedError


class _CoreFunction(Function):
    @staticmethod
    def forward(ctx: Any, vector: Tensor, core: FusedCore, *sequences: Any) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        outputs, ctx.saved = core.run(*sequences)
        ctx.core = core
        learned, others = outputs[: len(vector)], outputs[len(vector) :]
        ctx.mark_non_differentiable(others)
        return learned, others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, _: None) -> tuple[Tensor | None, ...]:
        of_vector, of_inputs = ctx.core.back(ctx.saved, g, ctx.needs_input_grad[3])
        return of_vector, None, None, of_inputs, None, None


def _rows(x: Tensor) -> Tensor:
    """Reshape [T, M, B, ...] to [M, T * B, numbers], contiguous."""
    return x.transpose(0, 1).flatten(1, 2).flatten(2).contiguous()


class FusedLSTM(FusedCore):
    """LSTM, whose state is output and cell.

    The gates are input, forget and output gate, then the proposed cell.
    """

    sigmoids = 3

    def _run(
        self, gates: Tensor, weight: Tensor, bias: Tensor | None, keep: Tensor, resets: list[bool], state: Tensor
    ) -> Saved:
        h, c = (part.contiguous() for part in state.split(self.width, -1))
        outputs, before, cells, squashed = [], [], [], []
        for t, gate in enumerate(gates.unbind(0)):
            if resets[t]:
                h, c = h * keep[t], c * keep[t]
            before.append(h)
            cells.append(c)
            gate.baddbmm_(h, weight).tanh_()
            gate[..., : 3 * self.width].mul_(0.5).add_(0.5)
            enter, forget, leave, proposed = gate.split(self.width, -1)
            c = (forget * c).add_(enter * proposed)
            tanh = torch.tanh(c)
            h = leave * tanh
            outputs.append(h)
            squashed.append(tanh)
        return {"outputs": outputs, "before": before, "cells": cells, "tanh": squashed, "state": torch.cat([h, c], -1)}

    def _back(
        self, saved: Saved, g: Tensor, gates: tuple[Tensor, ...], before: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        enter, forget, leave, proposed = gates
        members = g.shape[1]
        cells, tanh = (torch.stack(saved[name])[:, :members] for name in ("cells", "tanh"))
        keep, resets = saved["keep"][:, :members], saved["resets"]
        of_gates = [
            proposed * enter * (1 - enter),
            cells * forget * (1 - forget),
            tanh * leave * (1 - leave),
            enter * (1 - proposed * proposed),
        ]
        factors, of_cell, kept = torch.stack(of_gates, -2), leave * (1 - tanh * tanh), forget * keep
        slopes = torch.empty_like(factors)
        dh, dc = torch.zeros_like(g[0]), torch.zeros_like(g[0])
        for t in range(len(g) - 1, -1, -1):
            dh = dh + g[t]
            dc = dc + dh * of_cell[t]
            torch.mul(dc.unsqueeze(-2), factors[t], out=slopes[t])
            torch.mul(dh, factors[t][..., 2, :], out=slopes[t][..., 2, :])
            if t:
                dc = dc * kept[t]
                dh = torch.bmm(slopes[t].flatten(2), weight)
                dh = dh * keep[t] if resets[t] else dh
        return slopes, slopes


class FusedGRU(FusedCore):
    """GRU, whose state is its output.

    The gates are reset and update gate, then the proposed output.
    """

    sigmoids = 2

    def _run(
        self, gates: Tensor, weight: Tensor, bias: Tensor | None, keep: Tensor, resets: list[bool], state: Tensor
    ) -> Saved:
        assert bias is not None
        h, both = state, 2 * self.width
        outputs, before, recurrent = [], [], []
        for t, gate in enumerate(gates.unbind(0)):
            if resets[t]:
                h = h * keep[t]
            before.append(h)
            added = torch.baddbmm(bias, h, weight)
            squashed, proposed = gate[..., :both], gate[..., both:]
            squashed.add_(added[..., :both]).tanh_().mul_(0.5).add_(0.5)
            reset, update = squashed.split(self.width, -1)
            proposed.add_(reset * added[..., both:]).tanh_()
            h = ((1 - update) * proposed).add_(update * h)
            outputs.append(h)
            recurrent.append(added[..., both:])
        return {"outputs": outputs, "before": before, "recurrent": recurrent, "state": h}

    def _back(
        self, saved: Saved, g: Tensor, gates: tuple[Tensor, ...], before: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        reset, update, proposed = gates
        members = g.shape[1]
        recurrent = torch.stack(saved["recurrent"])[:, :members]
        keep, resets = saved["keep"][:, :members], saved["resets"]
        to_proposed = (1 - update) * (1 - proposed * proposed)
        to_reset = to_proposed * recurrent * reset * (1 - reset)
        to_update = (before - proposed) * update * (1 - update)
        factors = torch.stack([to_reset, to_update, to_proposed * reset], -2)
        slopes, every = torch.empty_like(factors), torch.empty_like(g)
        dh = torch.zeros_like(g[0])
        for t in range(len(g) - 1, -1, -1):
            dh = torch.add(dh, g[t], out=every[t])
            torch.mul(dh.unsqueeze(-2), factors[t], out=slopes[t])
            if t:
                dh = torch.baddbmm(dh * update[t], slopes[t].flatten(2), weight)
                dh = dh * keep[t] if resets[t] else dh
        return torch.cat([slopes[..., :2, :], (every * to_proposed).unsqueeze(-2)], -2), slopes


def fused(core: Core) -> FusedCore:
    """Return the fused form of a core."""
    return FusedLSTM(core) if core.kind == "lstm" else FusedGRU(core)
