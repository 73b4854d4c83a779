"""Recurrent cores over sequences with the gradient through time written out, as `dense` does for perceptrons.

Autograd makes several times as many small arrays, and its calls are what small networks' time goes to. All gates of a
step are one tanh: σ(x) = ½ + ½ tanh(½ x), and a half is exact, so the weights are halved once.

Notation: M members, B sequences, T steps, W outputs, S numbers in a state, G = 4 W (LSTM) or 3 W (GRU) gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .mlp import affine
from .recurrent import Core


class Unrolled:
    """The computation of a `Core`, and the gradient of what its last call with `learning` put out.

    B and W are to be at least 2: products with a vector round otherwise for one member than for many.
    """

    scratch = ("_saved",)
    squashed: int  # how many of the gates are sigmoids; they stand first

    def __init__(self, core: Core):
        self.core, self.width = core, core.width
        self._saved: dict[str, Any] = {}

    def __call__(
        self, tensors: Mapping[str, Tensor], x: Tensor, begins: Tensor, state: Tensor, learning: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The outputs (M, B, T, W), and the last state (M, B, S), as `Core` has them for the same arguments."""
        weight, hidden, bias = (
            tensors.get(f"{self.core.prefix}.{name}") for name in ("input.weight", "hidden.weight", "hidden.bias")
        )
        assert weight is not None
        assert hidden is not None
        batch, steps = x.shape[1:3]
        scale = torch.ones(hidden.shape[-1], device=x.device)
        scale[: self.squashed * self.width] = 0.5
        x = x.transpose(1, 2).flatten(1, 2)  # [M, B, T, D] -> [M, T * B, D]
        drive = affine(x, weight, tensors[f"{self.core.prefix}.input.bias"]).mul_(scale)
        gates = drive.unflatten(1, (steps, batch)).transpose(0, 1).contiguous()  # [T, M, B, G]
        keep = (1 - begins).permute(2, 0, 1).unsqueeze(-1).contiguous()
        forgets = begins.any(1).any(0).tolist()  # where nobody does, keep is 1 and changes nothing
        saved = self._run(gates, hidden * scale, None if bias is None else bias * scale, keep, forgets, state)
        outputs = torch.stack(saved["outputs"])
        if learning:
            self._saved = {**saved, "x": x, "gates": gates, "keep": keep, "forgets": forgets, "hidden": hidden}
        return outputs.permute(1, 2, 0, 3), saved["state"]

    def to_vector(self, g: Tensor) -> Tensor:
        """The gradient (M', numbers) in the parameters of the first M' members, by that in the outputs (M', B, T, W).

        The state before the first step gets none.
        """
        members, saved = len(g), self._saved
        gates = saved["gates"][:, :members].unflatten(-1, (-1, self.width)).unbind(-2)
        g = g.permute(2, 0, 1, 3).contiguous()
        before = torch.stack(saved["before"])[:, :members]
        to_drive, to_hidden = self._back(g, gates, before, saved["hidden"][:members].transpose(1, 2))
        rows = _rows(to_drive)
        x = functional.pad(saved["x"][:members], (0, int(saved["x"].shape[-1] == 1)))  # no product with a vector
        of_input = torch.bmm(x.transpose(1, 2), rows)[:, : self.core.inputs]
        hidden_rows = rows if to_hidden is to_drive else _rows(to_hidden)
        of_hidden = torch.bmm(_rows(before).transpose(1, 2), hidden_rows)
        parts = [of_input.flatten(1), rows.sum(1), of_hidden.flatten(1)]
        return torch.cat(parts if to_hidden is to_drive else [*parts, hidden_rows.sum(1)], 1)

    def _run(
        self, gates: Tensor, weight: Tensor, bias: Tensor | None, keep: Tensor, forgets: list[bool], state: Tensor
    ) -> dict[str, Any]:
        """Turns what drives the gates (T, M, B, G) into the gates, in place; what it went through, step by step."""
        raise NotImplementedError

    def _back(self, g: Tensor, gates: tuple[Tensor, ...], before: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients (T, M, B, G) in what drives the gates, and in what the hidden weights add to it."""
        raise NotImplementedError


def _rows(x: Tensor) -> Tensor:
    """(T, M, B, ...) -> (M, T * B, numbers), contiguous."""
    return x.transpose(0, 1).flatten(1, 2).flatten(2).contiguous()


class UnrolledLSTM(Unrolled):
    """Its state is output and cell; its gates are input, forget and output gate, and what is proposed."""

    squashed = 3

    def _run(
        self, gates: Tensor, weight: Tensor, bias: Tensor | None, keep: Tensor, forgets: list[bool], state: Tensor
    ) -> dict[str, Any]:
        h, c = (part.contiguous() for part in state.split(self.width, -1))
        outputs, before, cells, squashed = [], [], [], []
        for t, gate in enumerate(gates.unbind(0)):
            if forgets[t]:
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

    def _back(self, g: Tensor, gates: tuple[Tensor, ...], before: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        enter, forget, leave, proposed = gates
        saved, members = self._saved, g.shape[1]
        cells, tanh = (torch.stack(saved[name])[:, :members] for name in ("cells", "tanh"))
        keep, forgets = saved["keep"][:, :members], saved["forgets"]
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
                dh = dh * keep[t] if forgets[t] else dh
        return slopes, slopes


class UnrolledGRU(Unrolled):
    """Its state is its output; its gates are reset and update gate, and what is proposed."""

    squashed = 2

    def _run(
        self, gates: Tensor, weight: Tensor, bias: Tensor | None, keep: Tensor, forgets: list[bool], state: Tensor
    ) -> dict[str, Any]:
        assert bias is not None
        h, both = state, 2 * self.width
        outputs, before, recurrent = [], [], []
        for t, gate in enumerate(gates.unbind(0)):
            if forgets[t]:
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

    def _back(self, g: Tensor, gates: tuple[Tensor, ...], before: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        reset, update, proposed = gates
        saved, members = self._saved, g.shape[1]
        recurrent = torch.stack(saved["recurrent"])[:, :members]
        keep, forgets = saved["keep"][:, :members], saved["forgets"]
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
                dh = dh * keep[t] if forgets[t] else dh
        return torch.cat([slopes[..., :2, :], (every * to_proposed).unsqueeze(-2)], -2), slopes


def unrolled(core: Core) -> Unrolled:
    """The unrolled form of a core."""
    return UnrolledLSTM(core) if core.kind == "lstm" else UnrolledGRU(core)
