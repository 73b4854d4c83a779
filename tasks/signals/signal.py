"""What every signal is: a reward of the learner's own, with its own discount, strength, networks and critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from ...spaces import Dimension, Space, categorical, log_real, near_one, ordinal
from ..checkpoint.state import Tree
from ..experience.rollout import Rollout
from .demonstrations import Examples
from .learned import Critic, Learned

if TYPE_CHECKING:
    from ..algorithms.actor_critic_learner import ActingLearner


def signal_space(lr: float, strength: tuple[float, float, float], **more: Dimension) -> Space:
    """Whether there is a signal, and what all signals have; `more` of its own, with when={"use": True}.

    lr: the default; strength: the range that is searched, and the default.
    """
    on: dict[str, Any] = {"when": {"use": True}}
    low, high, default = strength
    return Space(
        use=categorical(False, True, default=False, structural=True, search=False, silent=True),
        strength=log_real(low, high, default=default, accept=(0.0, 1e6), **on),
        gamma=near_one(0.9, 0.9999, default=0.99, accept=(0.0, 1.0), **on),
        lr=log_real(3e-5, 3e-3, default=lr, accept=(0.0, 100.0), **on),
        width=ordinal(16, 32, 64, 128, 256, default=64, accept=(2, 65536), structural=True, search=False, **on),
        **more,
    )


class Signal:
    """A reward that P members make themselves.

    Attributes:
        name: of its group of hyperparameters, and what its metrics begin with.
        episodic: whether its return ends with an episode. Where it does not, what was learned goes on to be known in
            the next one, and an agent that dies to begin anew gains nothing (Burda et al. 2018, section 2.3).
        learned: its networks; critic: of its returns.
    """

    name: ClassVar[str]
    episodic: ClassVar[bool]
    learned: Learned

    def __init__(self, learner: ActingLearner, examples: Examples | None):
        """examples: what is demonstrated, if anything is."""
        self.hp = getattr(learner.hp, self.name)
        self.critic = Critic(f"{self.name}.critic", learner, self.hp.width)

    def watch(self, rollout: Rollout) -> None:
        """Sees every rollout once, before it is rewarded, for statistics that are state."""

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        """What it pays for obs, actions and next_obs, (P, T * N, ...), in the order of time: (P, T * N)."""
        raise NotImplementedError

    def scaled(self, rewards: np.ndarray) -> np.ndarray:
        """Rewards (T, P, N) on the scale that strengths are meant for; called once for each rollout."""
        return rewards

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Each member's loss (P,) on a minibatch (P, B, ...), by its weights, and what to report of it, each (P,).

        position: how many minibatches there were before, for random numbers.
        """
        raise NotImplementedError

    def settle(self, report: Mapping[str, Tensor], active: Tensor | None = None) -> None:
        """Learns what is not learned by gradients, after each step down the loss, from what that reported.

        active: the members that learn, (P, 1); None: all.
        """

    @property
    def own(self) -> dict[str, Any]:
        """Further parts of its state, by name."""
        return {}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that must stay finite."""
        parts = {"learned": self.learned.tensors, "critic": self.critic.learned.tensors}
        return {f"{part}.{name}": x for part, tensors in parts.items() for name, x in tensors.items()}

    def member_state(self, member: int) -> Tree:
        parts = {"learned": self.learned, "critic": self.critic.learned, **self.own}
        return {name: part.member_state(member) for name, part in parts.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        parts = {"learned": self.learned, "critic": self.critic.learned, **self.own}
        for name, part in parts.items():
            part.load_member(member, tree[name])
