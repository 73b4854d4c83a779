"""A critic fitted on its own, before the policy learns from it: Schulman et al. (2016), arXiv:1506.02438, section 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, maybe, ordinal
from ...spaces.choices import Choice
from ..checkpoint.state import Tree
from ..experience.returns import empirical_returns
from ..experience.rollout import Rollout, by_member, by_sequence
from ..networks.actor_critic import ActorCritic
from ..networks.grad_norms import mask, norms
from ..networks.optimizers import Optimizer, clip_norm, schedule, schedule_space
from ..rng.streams import Bits

if TYPE_CHECKING:
    from .on_policy import OnPolicyLearner

FOLLOW = "policy"
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-5}


def critic_space() -> Space:
    """Whether the critic shares the policy's loss or is fitted on its own, and how then."""
    separate: dict[str, Any] = {"search": False, "when": {"name": "separate"}}
    return Space(
        name=categorical("joint", "separate", default="joint", structural=True, search=False),
        targets=categorical("td_lambda", "empirical", default="td_lambda", structural=True, **separate),
        lr=log_real(3e-5, 1e-2, default=1e-3, accept=(0.0, 100.0), **separate),
        max_grad_norm=maybe(log_real(0.1, 5.0, accept=(1e-6, 1e6)), default=None, **separate),
        update_epochs=integer(1, 10, default=10, accept=(1, 1000), structural=True, **separate),
        num_minibatches=ordinal(2, 4, 8, 16, default=4, accept=(1, 65536), structural=True, **separate),
        lr_schedule=own_schedule_space(),
    )


def own_schedule_space() -> Space:
    """As `schedule_space`, for the critic's learning rate alone; "policy": it follows the schedule of the policy's."""
    schedules = schedule_space()
    name, final, warmup = (schedules.flat()[path] for path in ("name", "final", "warmup"))
    assert isinstance(name, Choice)
    values = tuple(map(str, name.values))
    mine = {
        "name": replace(name, values=(FOLLOW, *values), default=FOLLOW, when={"critic.name": "separate"}),
        "final": replace(final, search=False),
        "warmup": replace(warmup, when={"name": values}),
    }
    return Space(**{path: mine.get(path, dimension) for path, dimension in schedules.flat().items()})


class SeparateCritic:
    """Fits v(s) of P members by minibatches of its own, with Adam.

    Only the parameters of the critic move: what it shares with the actor (convolutions, a memory) learns from the
    policy's loss alone.
    """

    def __init__(self, policy: ActorCritic, hp: SimpleNamespace, keys: Bits):
        """hp: the values of `critic_space`; keys: the members' streams, (P,), for the order of minibatches."""
        self.policy, self.hp, self.keys = policy, hp, keys
        vector = policy.parameters.vector
        constants = {name: torch.full_like(vector[:, :1], value) for name, value in ADAM.items()}
        self.optimizer = Optimizer(vector, SimpleNamespace(name="adam", **constants))
        self.own = mask(policy.parameters, "critic").to(vector)  # 1 at the critic's parameters

    def fit(self, learner: OnPolicyLearner, rollout: Rollout) -> dict[str, Tensor]:
        """Fits the critic to the rollout's returns; of the last minibatch the mean squared error, halved, and more."""
        hp, lr, batch = self.hp, self.learning_rate(learner), learner.prepare(rollout)
        if hp.targets == "empirical":
            batch["returns"] = self.empirical(learner, rollout)
        for minibatch in learner.minibatches(batch, hp, self.keys):
            _, values = learner.forward(minibatch)
            losses = 0.5 * (values - minibatch["returns"]).square().mean(1)
            gradient = self.policy.parameters.gradient(losses).mul_(self.own)
            step = clip_norm(gradient, hp.max_grad_norm)
            self.optimizer.step(step.gradient, lr)
        return {"value_loss": losses, "critic_lr": lr.squeeze(1), **norms(step, "critic")}

    def learning_rate(self, learner: OnPolicyLearner) -> Tensor:
        """The critics' learning rates (P, 1) at this moment."""
        lr: Tensor = self.hp.lr
        plan = self.hp.lr_schedule
        return lr * (
            learner.schedule() if plan.name == FOLLOW else schedule(plan, torch.full_like(lr, learner.env_steps))
        )

    def empirical(self, learner: OnPolicyLearner, rollout: Rollout) -> Tensor:
        """What was earned from each step on, (P, T * N)."""
        _, next_values = learner.estimate(rollout)
        gamma = learner.hp.gamma
        returns = empirical_returns(rollout.rewards, next_values, rollout.terminated, rollout.ended, gamma)
        return by_member(returns) if rollout.memory is None else by_sequence(returns)

    def member_state(self, member: int) -> Tree:
        return self.optimizer.member_state(member)

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.optimizer.load_member(member, tree)
