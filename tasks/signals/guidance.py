"""What an on-policy learner follows beside the environment's rewards: signals, and demonstrations that it clones.

All of it is off by default, and then no part of anything: neither computed, nor in states and identities.

What ML-Agents calls its settings, and what they are here:

    reward_signals: extrinsic           extrinsic.strength; gamma
        curiosity, rnd                  icm, rnd: use, strength, gamma, lr (learning_rate), width (hidden_units)
        gail                            gail: the same, use_actions (true here, as in the paper), variational (use_vail)
    behavioral_cloning                  cloning: strength, steps, samples_per_update, and a batch_size of its own
    demo_path                           the task's demonstrations, see `demonstrations`; one for both
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...spaces import Dimension, Space, integer, maybe, real
from ..checkpoint.state import Tree
from ..experience.rollout import Rollout
from .adversarial import gail_space
from .cloning import Cloning, cloning_space
from .curiosity import icm_space
from .demonstrations import Examples
from .distillation import rnd_space
from .mixture import KINDS, Signals, row_names

if TYPE_CHECKING:
    from ..algorithms.actor_critic_learner import ActingLearner

FROM_DEMONSTRATIONS = ("gail", "cloning")


def guidance_space() -> dict[str, Dimension | Space]:
    """The hyperparameters of all that can be beside the environment's rewards.

    extrinsic.strength multiplies those rewards (after normalize_reward), 0 for learning without them; None: they stay
    as they are. demonstrated_steps: how many steps are shown; `init` takes it from the demonstrations that it is given.
    """
    strength = maybe(real(0.0, 1.0, accept=(0.0, 1e6)), default=None, search=False, silent=True)
    return {
        "extrinsic": Space(strength=strength),
        "icm": icm_space(),
        "rnd": rnd_space(),
        "gail": gail_space(),
        "cloning": cloning_space(),
        "demonstrated_steps": integer(0, 10**8, default=0, structural=True, search=False, silent=True),
    }


def check_guidance(values: Mapping[str, Any], algorithm: str) -> None:
    """ValueError for hyperparameters of the space above that do not go together, or not with the others."""
    used = [kind.name for kind in KINDS if kind.name in values] + [name for name in ("cloning",) if name in values]
    learning = [name for name in FROM_DEMONSTRATIONS if name in values]
    shown = values.get("demonstrated_steps", 0)
    if learning and not shown:
        raise ValueError(
            f"{algorithm}: {' and '.join(learning)} learn from demonstrations, but there are none; give "
            "the task demonstrations=FILE, or --demonstrations FILE"
        )
    if shown and not learning:
        raise ValueError(
            f"{algorithm}: there are demonstrations, but nothing learns from them; set cloning.use or gail.use to true"
        )
    if used and not {"update_epochs", "num_minibatches"} <= values.keys():
        raise ValueError(
            f"{algorithm}: {used[0]} learns in update_epochs times num_minibatches steps, which it has "
            f"not; leave {used[0]}.use out, or give it these and let its iterate call follow"
        )


class Guidance:
    """The signals, the cloning and the demonstrations of P members, as one part of their state."""

    def __init__(self, learner: ActingLearner):
        hp, envs = learner.hp, learner.envs
        self.strength: Tensor | None = getattr(getattr(hp, "extrinsic", None), "strength", None)
        self.examples: Examples | None = None
        if steps := getattr(hp, "demonstrated_steps", 0):
            seen = envs.obs_shape, torch.float32 if envs.obs_kind == "vector" else torch.uint8
            self.examples = Examples(learner.members, steps, seen, learner.policy.distribution, learner.device)
        self.signals = Signals.of(learner, self.examples)
        clones = hasattr(hp, "cloning")
        self.cloning = Cloning(learner, self.examples) if clones and self.examples is not None else None
        held = {"signals": self.signals, "cloning": self.cloning, "demonstrations": self.examples}
        self.parts = {name: part for name, part in held.items() if part is not None}

    @property
    def rows(self) -> list[str]:
        """The names of what `judge` gives."""
        return [] if self.signals is None else [name for x in self.signals.signals for name in row_names(x.name)]

    @classmethod
    def of(cls, learner: ActingLearner) -> Guidance | None:
        """What the hyperparameters ask for; None if that is nothing."""
        return cls(learner) if vars(learner.hp).keys() & guidance_space().keys() else None

    def weigh(self, rollout: Rollout) -> Rollout:
        """The rollout with the environment's rewards as strong as they shall be."""
        if self.strength is not None:
            rollout.rewards.mul_(self.strength)
        return rollout

    def add(self, learner: ActingLearner, batch: dict[str, Tensor], rollout: Rollout) -> dict[str, Tensor]:
        """The batch with the signals' advantages among the others; called once for each rollout."""
        if self.signals is None:
            return batch
        assert rollout.next_obs is not None
        next_obs = rollout.next_obs if rollout.memory is None else rollout.next_obs.transpose(1, 2)
        rows = {**self.judge(rollout), "terminated": rollout.terminated, "ended": rollout.ended}
        return self.mix(learner, {**batch, "next_obs": next_obs.flatten(1, 2).contiguous()}, rows)

    def judge(self, rollout: Rollout) -> dict[str, Tensor]:
        """What the signals pay and expect, see `Signals.judge`."""
        return {} if self.signals is None else self.signals.judge(rollout)

    def mix(self, learner: ActingLearner, batch: dict[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The batch with the advantages of what was judged among the others, see `Signals.mix`."""
        return batch if self.signals is None else self.signals.mix(learner, batch, rows)

    def learn(
        self, learner: ActingLearner, batch: Mapping[str, Tensor], lr: Tensor, active: Tensor | None = None
    ) -> dict[str, Tensor]:
        """What follows the policy's own update, at its learning rates (P, 1), of members that are `active` (P, 1)."""
        found = {} if self.signals is None else self.signals.learn(learner, batch, lr, active)
        return found | ({} if self.cloning is None else self.cloning.learn(learner, lr, active))

    def shown_to(self, member: int) -> dict[str, Tensor]:
        """One member's demonstrations by name; views."""
        return {} if self.examples is None else self.examples.of(member)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that must stay finite."""
        return {f"{part}.{name}": x for part, held in self.parts.items() for name, x in held.tensors.items()}

    def member_state(self, member: int) -> Tree:
        return {name: part.member_state(member) for name, part in self.parts.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_member(member, tree[name])
