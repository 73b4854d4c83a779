"""State-dependent exploration in soft actor-critic: Raffin et al. (2022), arXiv:2005.05719, see `sde`.

    u = μ(s) + θ z(s),   θ_ij ~ N(0, σ_ij²),   so that   u_i ~ N(μ_i(s), Σ_j σ_ij² z_j(s)²)

While acting θ stays for many steps; a gradient step sees the same distribution, with noise of its own for every row.

Notation: P members, N environments, B batch, k numbers in an action, L activations z of the policy's last hidden layer.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ...networks.mlp import affine
from ...networks.sde import VARIANCE
from .actions import SoftActions


class StateDependentSpread:
    """Log standard deviations that a policy's last hidden layer gives, in the place of a linear layer's.

    Attributes:
        shape: of log σ, (L, k); outputs: how many numbers the linear layer has to put out, at least two: means, logits.
    """

    def __init__(self, actions: SoftActions, width: int):
        self.numbers, self.shape = actions.numbers, (width, actions.numbers)
        self.used = actions.outputs - actions.numbers
        self.outputs = max(2, self.used)  # products with a vector round otherwise for one member than for many

    def __call__(self, out: Tensor, z: Tensor, log_std: Tensor) -> Tensor:
        """Means, log standard deviations and logits (P, B, 2k + n), of z (P, B, L) and log σ (P, L, k)."""
        mean, logits, _ = out.split([self.numbers, self.used - self.numbers, self.outputs - self.used], -1)
        return torch.cat([mean, 0.5 * self._variance(z, log_std).log(), logits], -1)

    def back(self, g: Tensor, z: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients in the linear layer's outputs (P, B, outputs), and in log σ (P, L * k); z gets none by it.

        v = Σ_j σ_j² z_j²,   d(½ log v)/dlog σ_j = σ_j² z_j² / v
        """
        k = self.numbers
        of_mean, of_log_std, of_logits = g.split([k, k, self.used - k], -1)
        of_out = functional.pad(torch.cat([of_mean, of_logits], -1), (0, self.outputs - self.used))
        ratio = functional.pad(of_log_std / self._variance(z, log_std), (0, int(k == 1)))
        of_squares = torch.bmm((z * z).transpose(1, 2), ratio)[..., :k]
        return of_out, (of_squares * (2 * log_std).exp()).flatten(1)

    def _variance(self, z: Tensor, log_std: Tensor) -> Tensor:
        offset = z.new_full((len(z), 1, self.numbers), VARIANCE)
        return affine(z * z, (2 * log_std).exp(), offset)

    @staticmethod
    def perturbation(z: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """θ z(s), (P, N, k), for standard normal numbers (P, N, k, L)."""
        theta = noise * log_std.exp().transpose(1, 2).contiguous().unsqueeze(1)
        return (theta * z.unsqueeze(-2)).sum(-1)
