"""Batch renormalization, beside sb3-contrib's and by hand."""

from __future__ import annotations

import pytest
import torch
from rekindle.tasks.networks.renorm import EPS, WARMUP, renormalized
from sb3_contrib.common import torch_layers


@pytest.mark.parametrize("steps", [0, WARMUP + 1])
def test_a_batch_is_renormalized_as_by_sb3_contrib(steps: int) -> None:
    """Theirs has the unbiased variance: it is ours times B / (B - 1)."""
    generator = torch.Generator().manual_seed(0)
    x, rows = 3 * torch.randn(2, 4000, 5, generator=generator) + 1, 4000
    mean, variance = torch.randn(2, 1, 5, generator=generator), 0.1 + torch.rand(2, 1, 5, generator=generator)
    kept = mean.clone(), variance.clone()
    result = renormalized(x, mean, variance, torch.full((2, 1), float(steps)))
    for p in range(2):
        other = torch_layers.BatchRenorm1d(5)
        other.ra_mean, other.ra_var = kept[0][p, 0].clone(), kept[1][p, 0].clone()
        other.steps += steps
        torch.testing.assert_close(result[p], other(x[p]).detach(), rtol=5e-3, atol=5e-3)
        torch.testing.assert_close(mean[p, 0], other.ra_mean)
        torch.testing.assert_close(variance[p, 0], other.ra_var, rtol=1e-3, atol=1e-3)
    assert rows == x.shape[1]


def test_corrections_are_clipped_and_get_no_gradient() -> None:
    """By hand, of a batch with mean 0 and deviation 1: μ = -100 gives d = 5, σ = 1/100 gives r = 3."""
    x = torch.tensor([[[-1.0], [1.0]]], requires_grad=True)
    moments = torch.full((1, 1, 1), -100.0), torch.full((1, 1, 1), 1e-4)
    result = renormalized(x, *moments, torch.full((1, 1), WARMUP + 1.0))
    expected = 3 / (1 + EPS) ** 0.5
    torch.testing.assert_close(result.detach(), torch.tensor([[[5 - expected], [5 + expected]]]))
    torch.testing.assert_close(moments[0], torch.full((1, 1, 1), -99.0))
    (gradient,) = torch.autograd.grad(result[0, 1, 0], x)
    torch.testing.assert_close(gradient.sum(), torch.tensor(0.0), atol=1e-5, rtol=0)
