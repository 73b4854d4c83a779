"""A critic that is fitted separately, before the policy is updated.

Schulman et al. (2016), arXiv:1506.02438, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, maybe, ordinal
from ...spaces.choices import Choice
from ..checkpoint.state import Tree
from ..experience.returns import CRITIC_LOSSES, empirical_returns
from ..experience.rollout import Agent, Rollout
from ..experience.whole_episodes import needs_whole_episodes
from ..networks.optimizers import adam, network_mask, norms, schedule, schedule_space
from ..rng.streams import Bits
from .on_policy import check_minibatches

FOLLOW = "policy"


def critic_space() -> Space:
    """Return the hyperparameters of the critic.

    A "joint" critic shares the policy's loss; a "separate" one is fitted on its own.
    """
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
    """Return the schedule of the critic's own learning rate.

    It extends `schedule_space` by "policy", which follows the policy's schedule.
    """
    dimensions = schedule_space().flat()
    name = dimensions["name"]
    assert isinstance(name, Choice)
    values = tuple(map(str, name.values))
    dimensions |= {
        "name": replace(name, values=(FOLLOW, *values), default=FOLLOW, when={"critic.name": "separate"}),
        "final": replace(dimensions["final"], search=False),
        "warmup": replace(dimensions["warmup"], when={"name": values}),
    }
    return Space(**dimensions)


def check_critic(values: Mapping[str, Any], algorithm: str) -> None:
    """Raise ValueError if other hyperparameters rule out a separate critic."""
    if values.get("critic", {}).get("name") != "separate":
        return
    check_minibatches(values, "critic.num_minibatches", values["critic"]["num_minibatches"], algorithm)
    if values.get("critic_lr") is not None:
        raise ValueError(
            f"{algorithm}: critic_lr is of a critic that shares the policy's loss, but critic.name is separate; give "
            "critic.lr instead"
        )
    if needs_whole_episodes(values):
        raise ValueError(
            f"{algorithm}: a separate critic is fitted to every rollout, but min_rollouts or min_steps waits for whole "
            "episodes; leave both out, or critic.name"
        )


class SeparateCritic:
    """A critic that is fitted before each update of the policy.

    It has its own minibatches and its own Adam. Only the critic's own parameters move. Layers shared with the actor
    (convolutions, a recurrent core) learn from the policy's loss alone.
    """

    def __init__(self, agent: Agent, hp: SimpleNamespace, keys: Bits):
        """Build the optimizer.

        Args:
            agent: agent with the policy's networks, which evaluates rollouts.
            hp: the algorithm's hyperparameters, with those of `critic_space` as `critic`.
            keys: random streams (P,) for the order of minibatches.
        """
        self.agent, self.hp, self.keys = agent, hp, keys
        self.plan = hp.lr_schedule if hp.critic.lr_schedule.name == FOLLOW else hp.critic.lr_schedule
        parameters = agent.policy.parameters
        self.optimizer = adam(parameters.vector)
        self.critic_mask = network_mask(parameters, "critic").to(parameters.vector)  # 1 at the critic's parameters

    def fit(self, rollout: Rollout, env_steps: int, iteration: int) -> dict[str, Tensor]:
        """Fit the critic to a rollout's returns.

        Args:
            rollout: the rollout.
            env_steps: environment steps so far, for the learning rate.
            iteration: number of the iteration, for the order of minibatches.

        Returns:
            Metrics of the last minibatch, each (P,).
        """
        hp, agent, lr = self.hp.critic, self.agent, self.learning_rate(env_steps)
        batch = agent.advantages(rollout, self.hp.gamma, self.hp.gae_lambda)
        if hp.targets == "empirical":
            batch["returns"] = self.empirical(rollout)
        for minibatch in agent.minibatches(batch, self.keys, iteration, hp.update_epochs, hp.num_minibatches):
            _, values = agent.policy(minibatch)
            losses = 0.5 * CRITIC_LOSSES[self.hp.critic_loss](values - minibatch["returns"]).mean(1)
            gradient = agent.policy.parameters.gradient(losses).mul_(self.critic_mask)
            step = self.optimizer.descend(gradient, lr, hp.max_grad_norm)
        return {"value_loss": losses.detach(), "critic_lr": lr.squeeze(1), **norms(step, "critic")}

    def learning_rate(self, env_steps: int) -> Tensor:
        """Return the critics' learning rates (P, 1) after these environment steps."""
        lr: Tensor = self.hp.critic.lr
        return lr * schedule(self.plan, torch.full_like(lr, env_steps))

    def empirical(self, rollout: Rollout) -> Tensor:
        """Return the discounted sum of rewards from each step on, (P, B)."""
        _, next_values = self.agent.values(rollout)
        rewards, terminated, ended = rollout.rewards, rollout.terminated, rollout.ended
        return self.agent.flatten(empirical_returns(rewards, next_values, terminated, ended, self.hp.gamma))

    def member_state(self, member: int) -> Tree:
        return self.optimizer.member_state(member)

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.optimizer.load_member(member, tree)
