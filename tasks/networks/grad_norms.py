"""How large gradients are, network by network, before and after they are clipped: what training reports of them.

Notation: P members, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .mlp import Parameters
from .optimizers import Clipped

EVERY = 16  # of many cheap iterations in an epoch, so many are one of which gradients are measured
LARGEST = torch.finfo(torch.float32).max
Places = Mapping[str, Sequence[tuple[int, int]]]


def places(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[tuple[int, int]]]:
    """Where in a vector of these parameters, by name, those of each network are; its name is their first word."""
    found: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for name, shape in shapes.items():
        stop = start + torch.Size(shape).numel()
        runs = found.setdefault(name.partition(".")[0], [])
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        runs.append((start, stop))
        start = stop
    return found


def mask(parameters: Parameters, network: str) -> Tensor:
    """Whether each number of the parameters' vector is one of this network's, (1, D)."""
    found = torch.zeros_like(parameters.vector[:1], dtype=torch.bool)
    for start, stop in places(parameters.shapes).get(network, []):
        found[:, start:stop] = True
    return found


@torch.no_grad()
def norms(step: Clipped, of: Places | str) -> dict[str, Tensor]:
    """`grad_norm.<network>` and, of what was clipped, `grad_norm_clipped.<network>`, each (P,).

    Args:
        of: where each network's numbers are; or the name of the one that has all.

    A norm beyond what a float can hold counts as the largest float: that alone breaks no training.
    """
    found: dict[str, Tensor] = {}
    where = {of: [(0, step.gradient.shape[1])]} if isinstance(of, str) else of
    for name, runs in where.items():
        squares = [step.gradient[:, start:stop].square().sum(1) for start, stop in runs]
        norm = sum(squares[1:], squares[0]).sqrt()
        found[f"grad_norm.{name}"] = norm if step.factor is None else norm / step.factor.squeeze(1)
        if step.factor is not None:
            found[f"grad_norm_clipped.{name}"] = norm
    return {name: norm.nan_to_num(nan=LARGEST, posinf=LARGEST) for name, norm in found.items()}
