"""Trust region policy optimization (TRPO): Schulman et al. (2015), arXiv:1502.05477.

The policy takes one step on a rollout: along the natural gradient, as far as the trust region allows, and shorter until
it improves the surrogate objective. Then the critic is fitted by gradient steps of its own. Default values are those of
sb3-contrib, with eight environments of 256 steps in place of one of 2048.

Notation: P members, B rows of a batch, D numbers in a policy's parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...spaces import integer, log_real, ordinal, real
from ..envs import EnvSpec
from ..experience.returns import average, standardize
from ..experience.rollout import Batch
from ..networks.optimizers import Clipped, network_mask
from ..runtime.progress import tick
from ..task import Task
from .on_policy import hard_environments, normalize_advantage, on_policy_space
from .on_policy_learner import Metrics, OnPolicyLearner, Steps

SMALL = 1e-10  # square of a residual at which conjugate gradients end


class TRPOLearner(OnPolicyLearner):
    """P members of TRPO.

    `optimizer`, `update_epochs` and `num_minibatches` are those of the critic.
    """

    hyperparameters = on_policy_space(
        lr=1e-3,
        num_steps=256,
        steps=(64, 128, 256, 512),
        target_kl=log_real(1e-3, 0.1, default=0.01, accept=(1e-6, 1e3)),
        cg_steps=ordinal(
            5, 10, 15, 20, 25, 30, default=15, accept=(1, 1000), structural=True,
            help="steps of conjugate gradients; raise it for a more exact natural gradient (SB3: cg_max_steps)",
        ),
        cg_damping=log_real(1e-3, 1.0, default=0.1, accept=(0.0, 1e3), search=False, help="added to the curvature"),
        line_search_steps=integer(
            1, 20, default=10, structural=True, search=False,
            help="step lengths that are tried (SB3: line_search_max_iter)",
        ),
        line_search_factor=real(
            0.5, 0.9, default=0.8, accept=(0.01, 0.99), search=False,
            help="ratio of a step length to the one before (SB3: line_search_shrinking_factor)",
        ),
        update_epochs=ordinal(5, 10, 20, 25, 30, default=10, accept=(1, 1000), structural=True),
        num_minibatches=ordinal(4, 8, 16, 32, default=16, accept=(1, 65536), structural=True),
        normalize_advantage=normalize_advantage(default=True),
        max_grad_norm=None,
        ent_coef=None,
        ent_coef_schedule=None,
        vf_coef=None,
        **hard_environments(),
    )  # fmt: skip

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        if values["overlap"]:
            raise ValueError(
                f"{cls.algorithm()}: its trust region lies around the policy that acted, but overlap collects with an "
                "older one; leave it out, or use ppo"
            )
        if values["model"]["memory"] != "none":
            raise ValueError(
                f"{cls.algorithm()}: its curvature needs second derivatives, which recurrent cores lack, but "
                f"model.memory is {values['model']['memory']}; leave it out, or use ppo"
            )

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        replaced = ["optimizer.lr"] if fixed.get("critic_lr") is not None else []
        return replaced + super().without_effect(env, fixed)

    def build(self) -> None:
        super().build()
        self.critics = network_mask(self.policy.parameters, "critic").float()  # 1 at the critic's parameters
        del self.networks["critic"]

    @cached_property
    def steps(self) -> Steps:
        return self.take_steps

    def take_steps(self, batch: Batch, lr: Tensor, active: Tensor | None) -> tuple[Metrics, Clipped]:
        """Take the policy's step and those of the critic, see `TorchSteps`."""
        metrics, gradient = self.improve_policy(batch, active)
        return {**metrics, **self.fit_critic(batch, lr, active)}, Clipped(gradient, None)

    def improve_policy(self, batch: Batch, active: Tensor | None) -> tuple[Metrics, Tensor]:
        """Take the policy's step.

            maximize L(θ) = mean r Â,   r = π(a|s) / π_old(a|s),   subject to mean KL(π_old, π) <= target_kl

        Eq. 14 of the paper, and appendix C: x = F⁻¹ ∇L, and the step is βx with β = √(2 target_kl / xᵀFx), or βx times
        a power of `line_search_factor`.

        Args:
            batch: tensors (P, B, ...).
            active: members that may be updated, (P, 1); None for all.

        Returns:
            Metrics, each (P,), and the gradient -∇L, (P, D).
        """
        hp = self.hp
        if self.normalize_advantage is True:
            batch = {**batch, "advantages": standardize(batch["advantages"], batch.get("weights"))}
        with torch.no_grad():
            old = self.policy.action_params(batch["obs"]).clone()
        loss, metrics = self.surrogate(batch)
        gradient = self.policy.parameters.gradient(loss) * (1 - self.critics)
        fisher = self.fisher(batch, old)
        direction = conjugate_gradients(fisher, -gradient, hp.cg_steps)
        with torch.no_grad():
            curvature = (direction * fisher(direction)).sum(1, keepdim=True)
            step = direction * (2 * hp.target_kl / curvature.clamp(min=SMALL)).sqrt()
            stepped, moved = self.search_line(batch, step, old, loss, active)
        return {"policy_loss": loss.detach(), **metrics, "approx_kl": moved * stepped, "stepped": stepped}, gradient

    def search_line(
        self, batch: Batch, step: Tensor, old: Tensor, loss: Tensor, active: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Take the longest step that improves L within the trust region.

        A member for which no tried length does stays where it is.

        Args:
            batch: tensors (P, B, ...).
            step: the longest step that is tried, (P, D).
            old: parameters of π_old(·|s), (P, B, ...).
            loss: -L before the step, (P,).
            active: members that may be updated, (P, 1); None for all.

        Returns:
            1 for members that took a step and 0 for others, (P,), and mean KL(π_old, π) at the last length tried, (P,).
        """
        hp, vector, distribution = self.hp, self.policy.parameters.vector, self.policy.distribution
        before, accepted, length = vector.clone(), torch.zeros_like(hp.gamma, dtype=torch.bool), 1.0
        moved = torch.zeros_like(loss)
        for _ in range(hp.line_search_steps):
            tick()
            vector.copy_(torch.where(accepted, vector, before + length * step))
            moved = average(distribution.kl(old, self.policy.action_params(batch["obs"])), batch.get("weights"))
            better = self.surrogate(batch)[0] < loss
            accepted |= (better & (moved < hp.target_kl.squeeze(1))).unsqueeze(1)
            length = length * hp.line_search_factor
            if accepted.device.type == "cpu" and accepted.all():
                break
        if active is not None:
            accepted &= active
        vector.copy_(torch.where(accepted, vector, before))
        return accepted.squeeze(1).float(), moved

    def surrogate(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Return -L(θ), (P,), and the mean entropy."""
        params, _ = self.policy(batch)
        log_probs, entropy = self.policy.distribution.log_prob_and_entropy(params, batch["actions"])
        ratio, weights = (log_probs - batch["log_probs"]).exp(), batch.get("weights")
        return -average(ratio * batch["advantages"], weights), {"entropy": average(entropy, weights).detach()}

    def fisher(self, batch: Mapping[str, Tensor], old: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the product of vectors (P, D) with F.

        F is the Hessian of the mean KL divergence, with `cg_damping` added on its diagonal.

        Args:
            batch: tensors (P, B, ...).
            old: parameters of π_old(·|s), (P, B, ...).
        """
        parameters, leaves = self.policy.parameters, list(self.policy.parameters.leaves.values())
        divergence = average(self.policy.distribution.kl(old, self.policy(batch)[0]), batch.get("weights"))
        slopes = torch.autograd.grad(divergence.sum(), leaves, create_graph=True, allow_unused=True)
        slope = parameters.joined(slopes)

        def product(v: Tensor) -> Tensor:
            with torch.enable_grad():
                along = (slope * v).sum()
            curved = parameters.joined(torch.autograd.grad(along, leaves, retain_graph=True, allow_unused=True))
            return curved * (1 - self.critics) + self.hp.cg_damping * v

        return product

    def fit_critic(self, batch: Batch, lr: Tensor, active: Tensor | None) -> Metrics:
        """Take the critic's gradient steps on minibatches, and return metrics."""
        hp, parameters, rates = self.hp, self.policy.parameters, lr * self.critics
        metrics: Metrics = {}
        for part in self.agent.minibatches(batch, self.order, self.iterations, hp.update_epochs, hp.num_minibatches):
            loss = self.value_loss(self.policy(part)[1], part)
            self.optimizer.step(parameters.gradient(loss), rates, active)
            metrics = {"value_loss": loss.detach()}
        return metrics

    def loss(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Metrics]:
        """Return -L(θ) plus the critic's loss, (P,), and metrics, each (P,)."""
        losses, metrics = self.surrogate(batch)
        value_loss = self.value_loss(self.policy(batch)[1], batch)
        return losses + value_loss, {"policy_loss": losses, "value_loss": value_loss, **metrics}


@torch.no_grad()
def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """Return approximate solutions x of A x = b, (P, D).

    Hestenes and Stiefel (1952). A member whose residual is small enough stays.

    Args:
        product: A times vectors (P, D).
        b: (P, D).
        steps: number of steps.
    """
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    square = residual.square().sum(1, keepdim=True)
    for _ in range(steps):
        tick()
        curved = product(direction)
        going = square > SMALL
        length = torch.where(going, square / (direction * curved).sum(1, keepdim=True), 0.0)
        x, residual = x + length * direction, residual - length * curved
        last, square = square, torch.where(going, residual.square().sum(1, keepdim=True), square)
        direction = torch.where(going, residual + square / last * direction, direction)
    return x


class TRPO(Task):
    """Trust region policy optimization for discrete and Box actions, Dicts and Tuples.

    Schulman et al. (2015), arXiv:1502.05477, with generalized advantage estimates.
    """

    name = "trpo"
    version = 1
    learner = TRPOLearner
