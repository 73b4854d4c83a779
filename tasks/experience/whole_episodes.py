"""On-policy updates that wait for whole episodes.

Members need different numbers of steps for that, while a cohort steps all of them alike. Each member therefore fills a
buffer of fixed size and is updated once it holds enough episodes; unused steps get weight 0. A member's numbers then
depend neither on when other members are updated nor on the length of their episodes.

Every environment contributes the same number of episodes: taking those that end first would favor short ones. Signals
compute the rewards of each step when it is made, and are trained with the policy, on the same steps.

Notation: P members, S steps of the buffer for an environment, N environments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...spaces import Dimension, integer, maybe
from ..checkpoint.member_state import Stacked
from ..envs import Envs
from .returns import gae
from .rollout import Agent, Batch, Rollout

ROWS = ("rewards", "values", "next_values", "terminated", "ended")
Mask = NDArray[np.bool_]


def whole_episodes_space(silent: bool = False) -> dict[str, Dimension]:
    """Return the hyperparameters that make updates wait for whole episodes.

    An update needs min_rollouts whole episodes, rounded up to a multiple of num_envs, and min_steps steps in such
    episodes; None for both does not wait. A member's conditions are checked every num_steps. When they hold, the member
    is updated and its environments are reset.

    An environment stores at most max_rollout_steps, over all its episodes. When they are full, the update uses the
    stored steps, whose last episode is truncated and bootstraps. An update costs as much as max_rollout_steps *
    num_envs steps, however few of them it uses. The metric `rollouts` counts the episodes of updates. SVPG's particles
    all wait for the last one.

    `silent` is for tasks that are older than these hyperparameters.
    """
    unsearched: dict[str, Any] = {"search": False, "silent": silent}
    return {
        "min_rollouts": maybe(integer(1, 1_000_000), default=None, **unsearched),
        "min_steps": maybe(integer(1, 10_000_000), default=None, **unsearched),
        "max_rollout_steps": integer(1, 1_000_000, default=1000, structural=True, **unsearched),
    }


def needs_whole_episodes(values: Mapping[str, Any]) -> bool:
    """Return whether these hyperparameters ask for whole episodes."""
    return values.get("min_rollouts") is not None or values.get("min_steps") is not None


def capacity(hp: SimpleNamespace) -> int:
    """Return S: max_rollout_steps rounded up to whole rollouts."""
    return int(hp.num_steps) * math.ceil(hp.max_rollout_steps / hp.num_steps)


def minibatch_size(hp: SimpleNamespace) -> int:
    """Return B, the number of steps in a minibatch, used or not."""
    if "batch_size" in vars(hp):
        return int(hp.batch_size)
    steps = capacity(hp) if needs_whole_episodes(vars(hp)) else int(hp.num_steps)
    parts = hp.num_minibatches if hp.model.memory == "none" else min(hp.num_minibatches, hp.num_envs)
    return steps * hp.num_envs // parts


def check_whole_episodes(values: Mapping[str, Any], algorithm: str) -> None:
    """Raise ValueError if other hyperparameters rule out waiting for whole episodes."""
    if not needs_whole_episodes(values):
        return
    size = values["num_envs"] * values["max_rollout_steps"]
    for name in ("min_steps", "min_rollouts"):  # an episode has at least one step
        if (least := values[name] or 0) > size:
            raise ValueError(
                f"{algorithm}: {name} ({least}) must be at most num_envs * max_rollout_steps ({size}), "
                "for which an update has room; raise max_rollout_steps"
            )
    if values["num_minibatches"] != 1:
        raise ValueError(
            f"{algorithm}: an update that waits for whole episodes is one minibatch, but num_minibatches "
            f"is {values['num_minibatches']}; try num_minibatches=1"
        )
    if values.get("normalize_advantage") == "running":
        raise ValueError(
            f"{algorithm}: an update that waits for whole episodes standardizes its own advantages or "
            "none, but normalize_advantage is 'running'; try True"
        )


class EpisodeBuffer(Stacked):
    """Steps of P members, each since its last update."""

    def __init__(self, hp: SimpleNamespace, envs: Envs, agent: Agent, signal_rows: Sequence[str] = ()):
        """Allocate the buffer.

        Args:
            hp: values of `whole_episodes_space`, num_steps and num_envs.
            envs: the members' environments.
            agent: agent that acts in them.
            signal_rows: names of the signals' rewards and values of each step.
        """
        self.agent, device, dist = agent, agent.device, agent.policy.distribution
        members, num_envs = envs.num_members, envs.num_envs
        self.steps, self.names = capacity(hp), (*ROWS, *signal_rows)
        self.observed = ("obs", "next_obs") if signal_rows else ("obs",)
        form = (members, self.steps, num_envs)
        dtype = torch.float32 if envs.obs_kind == "vector" else torch.uint8
        self.tensors = {name: torch.zeros(form, device=device) for name in self.names}
        for name in self.observed:
            self.tensors[name] = torch.zeros(*form, *envs.obs_shape, dtype=dtype, device=device)
        self.tensors |= {
            "actions": torch.zeros(*form, *dist.action_shape, dtype=dist.action_type, device=device),
            "filled": torch.zeros(members, 1, dtype=torch.int64, device=device),
        }
        rollouts, steps = (
            np.ones((members, 1)) if x is None else x.cpu().numpy() for x in (hp.min_rollouts, hp.min_steps)
        )
        # (P,): whole episodes of each environment, and steps over all environments
        self.min_episodes, self.min_steps = np.ceil(rollouts[:, 0] / num_envs), steps[:, 0]

    def add(self, rollout: Rollout, signal_rows: Mapping[str, Tensor]) -> None:
        """Append a rollout to each member's steps.

        The signals' rows are (T, P, N) each.
        """
        rows = (rollout.rewards, *self.agent.values(rollout), rollout.terminated, rollout.ended)
        new = {name: x.transpose(0, 1) for name, x in {**dict(zip(ROWS, rows, strict=True)), **signal_rows}.items()}
        new |= {"obs": rollout.obs[:, :-1], "actions": rollout.actions}
        if rollout.next_obs is not None:
            new["next_obs"] = rollout.next_obs
        for member, start in enumerate(self.tensors["filled"][:, 0].tolist()):
            for name, x in new.items():
                self.tensors[name][member, start : start + x.shape[1]] = x[member]
        self.tensors["filled"] += len(rollout.ended)

    def truncate_all(self) -> None:
        """Mark all running episodes as truncated at their last step."""
        for member, rows in enumerate(self.tensors["filled"][:, 0].tolist()):
            if rows:
                self.tensors["ended"][member, rows - 1] = 1

    def ready_members(self) -> tuple[Mask, Mask]:
        """Return masks of members to update and of steps to use.

        They are (P,) and (P, S, N).
        """
        filled = self.tensors["filled"][:, 0].tolist()
        ready, used = np.zeros(len(filled), np.bool_), np.zeros(self.tensors["ended"].shape, np.bool_)
        for member, rows in enumerate(filled):
            ended = self.tensors["ended"][member, :rows].cpu().numpy().astype(np.int64)
            episode = ended.cumsum(0) - ended  # number of each step's episode, from 0 in every environment
            finished = ended.sum(0)
            # Each environment contributes its first `quota` episodes; raise the quota until they have enough steps, or
            # some environment has not finished that many.
            quota, least = self.min_episodes[member], self.min_steps[member]
            while (episode < quota).sum() < least and quota <= finished.min():
                quota += 1
            ready[member] = rows == self.steps or ((episode < quota).sum() >= least and finished.min() >= quota)
            used[member, :rows] = episode < quota
        return ready, used

    def rollouts(self, used: Mask) -> Tensor:
        """Return the number of whole episodes among the used steps, (P,)."""
        whole = torch.from_numpy(used).to(self.tensors["ended"]) * self.tensors["ended"]
        return whole.flatten(1).sum(1)

    def batch(self, used: Mask, gamma: Tensor, gae_lambda: Tensor) -> Batch:
        """Return a batch of all stored steps, as `Agent.advantages` does.

        Its `weights` are 1 for used steps, else 0.
        """
        agent, rows = self.agent, self.rows()
        advantages = gae(**{name: rows[name] for name in ROWS}, gamma=gamma, gae_lambda=gae_lambda)
        weights = torch.from_numpy(used).to(advantages)
        flat = {
            "values": rows["values"],
            "advantages": advantages,
            "returns": advantages + rows["values"],
            "weights": weights.transpose(0, 1),
        }
        batch = agent.batch(self.tensors["obs"], self.tensors["actions"], rows["ended"])  # from beginnings of episodes
        batch |= {name: agent.flatten_steps(self.tensors[name]) for name in self.observed[1:]}
        return batch | {name: agent.flatten(x) for name, x in flat.items()}

    def rows(self) -> dict[str, Tensor]:
        """Return the stored rewards, values and other rows by name.

        Each is (S, P, N).
        """
        return {name: self.tensors[name].transpose(0, 1).contiguous() for name in self.names}

    def running(self) -> Mask:
        """Return a mask (P, N) of environments that are within an episode."""
        last = self.tensors["filled"][:, 0].cpu().numpy() - 1
        mask: Mask = self.tensors["ended"].cpu().numpy()[np.arange(len(last)), last] == 0
        return mask

    def clear(self, members: Mask) -> None:
        """Delete the steps of these members, (P,)."""
        for tensor in self.tensors.values():
            tensor[torch.from_numpy(members).to(tensor.device)] = 0
