"""The interface of a signal: rewards with a discount, networks, a critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ...spaces import Dimension, Space, categorical, log_real, near_one, ordinal
from ..checkpoint.member_state import Part, Stacked
from ..checkpoint.state import Tree
from ..experience.rollout import Rollout
from .demonstrations import Examples
from .host import SignalHost
from .trained_networks import SignalCritic, TrainedNetworks


def signal_space(lr: float, strength: tuple[float, float, float], **more: Dimension) -> Space:
    """Return the hyperparameters of a signal.

    Args:
        lr: the default learning rate.
        strength: its range to search, low and high, and its default.
        more: the signal's own hyperparameters, with when={"use": True}.
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
    """A reward that P members compute themselves.

    Attributes:
        name: of its group of hyperparameters; its metrics begin with it.
        episodic: whether its return ends with an episode. Where it does not, an agent gains nothing by dying to see the
            first steps again (Burda et al. 2018, section 2.3).
        trained: its networks.
        critic: of its returns.
    """

    name: ClassVar[str]
    episodic: ClassVar[bool]
    trained: TrainedNetworks

    def __init__(self, host: SignalHost, examples: Examples | None):
        """Make the critic; examples: the demonstrations, if any."""
        self.hp = getattr(host.hp, self.name)
        self.critic = SignalCritic(f"{self.name}.critic", host, self.hp.width)

    def observe(self, rollout: Rollout) -> None:
        """Advance the running statistics of observations by a new rollout."""

    def rewards(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the rewards of a rollout's steps, (P, T * N).

        Args:
            batch: obs, actions and next_obs, (P, T * N, ...), in the order of time.
        """
        raise NotImplementedError

    def normalize(self, rewards: np.ndarray) -> np.ndarray:
        """Advance the statistics of rewards (T, P, N), and return them scaled."""
        return rewards

    def loss(self, batch: Mapping[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each member's loss and its metrics, each (P,).

        Args:
            batch: a minibatch (P, B, ...), with weights if there are any.
            position: the number of minibatches before this one, for random numbers.
        """
        raise NotImplementedError

    def update_multiplier(self, metrics: Mapping[str, Tensor], active: Tensor | None = None) -> None:
        """Update the Lagrange multiplier of the loss, if any, after a step.

        Args:
            metrics: of that step's loss.
            active: the members to update, (P, 1); None for all.
        """

    @property
    def parts(self) -> dict[str, Part]:
        """All state, by name."""
        return {"learned": self.trained, "critic": self.critic.trained}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The state that must stay finite."""
        stacked = {name: part for name, part in self.parts.items() if isinstance(part, Stacked)}
        return {f"{part}.{name}": x for part, held in stacked.items() for name, x in held.tensors.items()}

    def member_state(self, member: int) -> Tree:
        return {name: part.member_state(member) for name, part in self.parts.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_member(member, tree[name])
