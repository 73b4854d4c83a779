"""Updates on whole episodes: what every member has gathered since its last one, and when that is enough.

As with a sampler that is asked for so many rollouts or steps, every environment begins an episode with the policy that
is to be updated, and plays it to its end. Members need more or fewer steps for that than their neighbours, while a
cohort steps them all alike. So each fills a room of its own, of one fixed size, and is updated when it has enough; what
else lies in the room has weight 0. A member's numbers then depend neither on when its neighbours are updated nor on how
long their episodes are.

Every environment gives the same number of episodes: to take those that end first would be to prefer short ones.

Signals judge each step when it is made, and learn when the policy does, from the same steps; so does what is cloned.

Notation: P members, S steps that the room has for an environment, N environments.
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
from ..networks.distributions import Distribution
from ..networks.recurrent import sequences_first
from .returns import gae, lambda_returns
from .rollout import Rollout, by_member, by_sequence

ROWS = ("rewards", "values", "next_values", "terminated", "ended")
Mask = NDArray[np.bool_]


def whole_episodes_space() -> dict[str, Dimension]:
    """An update waits for min_rollouts whole episodes and for min_steps steps of such; both None: it waits for none.

    min_rollouts is rounded up to a multiple of num_envs. A member's environments look for that after every num_steps,
    and then begin anew. Between two updates each has room for max_rollout_steps, all its episodes together: where that
    is full first, the update is on what is there, whose last episode is cut and bootstraps. The metric `rollouts` tells
    how many episodes updates were on. An update costs what max_rollout_steps * num_envs steps cost, however few of them
    it is on.
    """
    return {
        "min_rollouts": maybe(integer(1, 1_000_000), default=None, search=False),
        "min_steps": maybe(integer(1, 10_000_000), default=None, search=False),
        "max_rollout_steps": integer(1, 1_000_000, default=1000, structural=True, search=False),
    }


def waits(values: Mapping[str, Any]) -> bool:
    """Whether these hyperparameters ask for whole episodes."""
    return values.get("min_rollouts") is not None or values.get("min_steps") is not None


def room_steps(hp: SimpleNamespace) -> int:
    """S: whole rollouts that hold max_rollout_steps."""
    return int(hp.num_steps) * math.ceil(hp.max_rollout_steps / hp.num_steps)


def minibatch_size(hp: SimpleNamespace) -> int:
    """B: how many steps a minibatch has, used or not."""
    return (room_steps(hp) if waits(vars(hp)) else int(hp.num_steps)) * hp.num_envs // hp.num_minibatches


def check_whole_episodes(values: Mapping[str, Any], algorithm: str) -> None:
    """ValueError for hyperparameters that do not go together with waiting for whole episodes."""
    if not waits(values):
        return
    room = values["num_envs"] * values["max_rollout_steps"]
    for name in ("min_steps", "min_rollouts"):  # an episode has a step at least
        if (least := values[name] or 0) > room:
            raise ValueError(
                f"{algorithm}: {name} ({least}) must be at most num_envs * max_rollout_steps ({room}), "
                "for which an update has room; raise max_rollout_steps"
            )
    if values["num_minibatches"] != 1:
        raise ValueError(
            f"{algorithm}: an update that waits for whole episodes is one minibatch, but num_minibatches "
            f"is {values['num_minibatches']}; try num_minibatches=1"
        )
    if values["normalize_advantage"] == "running":
        raise ValueError(
            f"{algorithm}: an update that waits for whole episodes standardizes its own advantages or "
            "none, but normalize_advantage is 'running'; try True"
        )


class Gathered(Stacked):
    """The steps of P members, each one's since its last update."""

    def __init__(
        self,
        hp: SimpleNamespace,
        envs: Envs,
        distribution: Distribution,
        device: torch.device,
        signals: Sequence[str] = (),
    ):
        """hp: the values of `whole_episodes_space`, num_steps and num_envs; signals: what these know of each step."""
        members, num_envs = envs.num_members, envs.num_envs
        self.steps, self.names = room_steps(hp), (*ROWS, *signals)
        self.seen = ("obs", "next_obs") if signals else ("obs",)
        form = (members, self.steps, num_envs)
        kind = torch.float32 if envs.obs_kind == "vector" else torch.uint8
        self.tensors = {name: torch.zeros(form, device=device) for name in self.names}
        self.tensors |= {name: torch.zeros(*form, *envs.obs_shape, dtype=kind, device=device) for name in self.seen} | {
            "actions": torch.zeros(*form, *distribution.action_shape, dtype=distribution.action_type, device=device),
            "filled": torch.zeros(members, 1, dtype=torch.int64, device=device),
        }
        rollouts, least = (
            np.ones((members, 1)) if x is None else x.cpu().numpy() for x in (hp.min_rollouts, hp.min_steps)
        )
        self.quota, self.least = np.ceil(rollouts[:, 0] / num_envs), least[:, 0]  # (P,), of each environment and of all

    def add(
        self, rollout: Rollout, values: Tensor, next_values: Tensor, judged: Mapping[str, Tensor] | None = None
    ) -> None:
        """Puts a rollout into each member's room.

        values, next_values: as `evaluate_values` gives them; judged: what signals know of it, each (T, P, N).
        """
        rows = (rollout.rewards, values, next_values, rollout.terminated, rollout.ended)
        every = {**dict(zip(ROWS, rows, strict=True)), **(judged or {})}
        new = {name: x.transpose(0, 1) for name, x in every.items()}
        new |= {"obs": rollout.obs[:, :-1], "actions": rollout.actions}
        if rollout.next_obs is not None:
            new["next_obs"] = rollout.next_obs
        for member, start in enumerate(self.tensors["filled"][:, 0].tolist()):
            for name, x in new.items():
                self.tensors[name][member, start : start + x.shape[1]] = x[member]
        self.tensors["filled"] += len(rollout.ended)

    def truncate_all(self) -> None:
        """Take note that all running episodes were truncated at the last step."""
        for member, rows in enumerate(self.tensors["filled"][:, 0].tolist()):
            if rows:
                self.tensors["ended"][member, rows - 1] = 1

    def enough(self) -> tuple[Mask, Mask]:
        """Which members are to be updated, (P,), and on which of the steps in their rooms, (P, S, N)."""
        filled = self.tensors["filled"][:, 0].tolist()
        due, used = np.zeros(len(filled), np.bool_), np.zeros(self.tensors["ended"].shape, np.bool_)
        for member, rows in enumerate(filled):
            ended = self.tensors["ended"][member, :rows].cpu().numpy().astype(np.int64)
            episode = ended.cumsum(0) - ended  # the number of each step's episode, from 0 in every environment
            finished = ended.sum(0)
            quota, least = self.quota[member], self.least[member]
            while (episode < quota).sum() < least and quota <= finished.min():
                quota += 1
            due[member] = rows == self.steps or ((episode < quota).sum() >= least and finished.min() >= quota)
            used[member, :rows] = episode < quota
        return due, used

    def rollouts(self, used: Mask) -> Tensor:
        """How many whole episodes lie in the steps that are used, (P,)."""
        whole = torch.from_numpy(used).to(self.tensors["ended"]) * self.tensors["ended"]
        return whole.flatten(1).sum(1)

    def batch(self, used: Mask, gamma: Tensor, gae_lambda: Tensor, memory_size: int | None) -> dict[str, Tensor]:
        """What a loss needs of the rooms, each (P, S * N, ...); `weights` are 1 at the steps that are used, else 0.

        With a memory they are (P, N * S, ...), with `begins` and `memory`, as `OnPolicyLearner.prepare` gives them.
        """
        rows = self.rows()
        advantages = gae(**{name: rows[name] for name in ROWS}, gamma=gamma, gae_lambda=gae_lambda)
        returns, weights = lambda_returns(advantages, rows["values"]), torch.from_numpy(used).to(advantages)
        given = {
            "values": rows["values"],
            "advantages": advantages,
            "returns": returns,
            "weights": weights.transpose(0, 1),
        }
        done = {name: self.tensors[name] for name in (*self.seen, "actions")}
        if memory_size is None:
            flat = {name: by_member(x) for name, x in given.items()}
            return {name: x.flatten(1, 2) for name, x in done.items()} | flat
        ended = rows["ended"]
        given["begins"] = torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])
        flat = {name: by_sequence(x) for name, x in given.items()}
        memory = ended.new_zeros(*ended.shape[1:], memory_size)  # every room begins with episodes
        return {name: sequences_first(x) for name, x in done.items()} | {"memory": memory, **flat}

    def rows(self) -> dict[str, Tensor]:
        """What there is one number of for each step in the rooms, by name, each (S, P, N)."""
        return {name: self.tensors[name].transpose(0, 1).contiguous() for name in self.names}

    def running(self) -> Mask:
        """Where an episode is under way, (P, N)."""
        last = self.tensors["filled"][:, 0].cpu().numpy() - 1
        mask: Mask = self.tensors["ended"].cpu().numpy()[np.arange(len(last)), last] == 0
        return mask

    def clear(self, members: Mask) -> None:
        """Empties the rooms of these members, (P,)."""
        for tensor in self.tensors.values():
            tensor[torch.from_numpy(members).to(tensor.device)] = 0
