"""Several rewards at once: the environment's and those of signals, each with its own discount, critic and returns.

As in ML-Agents, what the policy follows is the mean of all advantages, the environment's among them:

    A = (A_environment + Σₖ A_k) / (1 + K),   A_k by generalized advantage estimation of strengthₖ rₖ, with γₖ and vₖ

A mean, and not a sum, keeps the size of a step where advantages are not standardized. Without signals none of this is
there, and a rollout is what it is without.

Notation: P members, T steps, N environments, B batch, K signals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..checkpoint.state import Tree
from ..experience.returns import average, gae, lambda_returns
from ..experience.rollout import Rollout, by_member, by_sequence, evaluate_values
from .adversarial import Adversary
from .curiosity import Curiosity
from .demonstrations import Examples
from .distillation import Distillation
from .signal import Signal

if TYPE_CHECKING:
    from ..algorithms.actor_critic_learner import ActingLearner

KINDS: tuple[type[Signal], ...] = (Curiosity, Distillation, Adversary)
ROWS = ("rewards", "values", "next_values")


def row_names(signal: str) -> list[str]:
    """What is known of every step by a signal of this name: what it pays, vₜ, and v of what follows."""
    return [f"{signal}.{row}" for row in ROWS]


class Signals:
    """The signals of P members, as one part of their state."""

    def __init__(self, learner: ActingLearner, kinds: list[type[Signal]], examples: Examples | None):
        self.signals = [kind(learner, examples) for kind in kinds]
        self.keys = learner.keys("signals")
        self.report: dict[str, Tensor] = {}

    scratch = ("report",)

    @classmethod
    def of(cls, learner: ActingLearner, examples: Examples | None) -> Signals | None:
        """Those that the hyperparameters ask for; None without any."""
        kinds = [kind for kind in KINDS if hasattr(learner.hp, kind.name)]
        return cls(learner, kinds, examples) if kinds else None

    @torch.no_grad()
    def judge(self, rollout: Rollout) -> dict[str, Tensor]:
        """What each signal pays and expects, see `ROWS`, each (T, P, N); called once for each rollout."""
        assert rollout.next_obs is not None
        seen = {"obs": rollout.obs[:, :-1], "actions": rollout.actions, "next_obs": rollout.next_obs}
        seen = {name: x.flatten(1, 2).contiguous() for name, x in seen.items()}
        rows: dict[str, Tensor] = {}
        for signal in self.signals:
            signal.watch(rollout)
            rewards = _in_time(signal.rewards(seen), rollout)
            rewards = signal.hp.strength * torch.from_numpy(signal.scaled(rewards.cpu().numpy())).to(rewards)
            values, following = evaluate_values(rollout, signal.critic)
            if not signal.episodic:  # what follows an episode is the next one
                last = _in_time(signal.critic(rollout.obs[:, -1].contiguous()), rollout)
                following = torch.cat([values[1:], last])
            rows |= dict(zip(row_names(signal.name), (rewards, values, following), strict=True))
        return rows

    @torch.no_grad()
    def mix(self, learner: ActingLearner, batch: dict[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch with all advantages in one, and the signals' returns; it holds next_obs, and weights if any.

        rows: what `judge` gave, terminated and ended, each (T, P, N).
        """
        flat, weights = by_member if learner.memory is None else by_sequence, batch.get("weights")
        total, self.report = batch["advantages"], {}
        for signal in self.signals:
            rewards, values, following = (rows[name] for name in row_names(signal.name))
            terminated, ended = (
                rows[name] if signal.episodic else torch.zeros_like(rows[name]) for name in ("terminated", "ended")
            )
            gamma, gae_lambda = signal.hp.gamma, learner.hp.gae_lambda
            advantages = gae(rewards, values, following, terminated, ended, gamma, gae_lambda)
            total = total + flat(advantages)
            batch[f"{signal.name}.returns"] = flat(lambda_returns(advantages, values))
            for what, x in (("reward", rewards), ("value", values)):
                self.report[f"{signal.name}_{what}"] = average(flat(x), weights)
        return {**batch, "advantages": total / (1 + len(self.signals))}

    def learn(
        self, learner: ActingLearner, batch: Mapping[str, Tensor], lr: Tensor, active: Tensor | None
    ) -> dict[str, Tensor]:
        """As many steps of each signal as the policy takes, on minibatches of the same size; what to report.

        lr: the policy's learning rates (P, 1), which the critics have; active: the members that learn, (P, 1).
        """
        hp = learner.hp
        position = learner.iterations * hp.update_epochs * hp.num_minibatches
        report: dict[str, Tensor] = {}
        for place, minibatch in enumerate(learner.minibatches(batch, hp, self.keys)):
            for signal in self.signals:
                losses, parts = signal.loss(minibatch, position + place)
                signal.learned.descend(losses, signal.hp.lr, active)
                signal.settle(parts, active)
                error = signal.critic.learn(minibatch, minibatch[f"{signal.name}.returns"], lr, active)
                parts = {"loss": losses, **parts, "value_loss": error}
                report |= {f"{signal.name}_{part}": x.detach() for part, x in parts.items()}
        return self.report | report

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that must stay finite."""
        return {f"{signal.name}.{name}": x for signal in self.signals for name, x in signal.tensors.items()}

    def member_state(self, member: int) -> Tree:
        return {signal.name: signal.member_state(member) for signal in self.signals}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        for signal in self.signals:
            signal.load_member(member, tree[signal.name])


def _in_time(x: Tensor, rollout: Rollout) -> Tensor:
    """(P, T * N) -> (T, P, N), contiguous."""
    return x.unflatten(1, (-1, rollout.rewards.shape[2])).transpose(0, 1).contiguous()
