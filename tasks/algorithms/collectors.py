"""Collection of rollouts during the update before.

With `overlap`, the update on rollout k runs while rollout k + 1 is collected with the policy from before that update.
The data are therefore always one update old, however long either takes, and PPO's ratios are relative to the policy
that acted. Waiting for slow simulators then costs no time. ML-Agents calls this `threaded`, with a lag that varies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...spaces import Dimension, categorical
from ..checkpoint.member_state import Stacked
from ..envs import Envs
from ..experience.rollout import Agent, Rollout
from ..experience.whole_episodes import needs_whole_episodes

BY_TIME = ("rewards", "terminated", "ended")  # (T, P, N)


def overlap_choice() -> Dimension:
    """Return the hyperparameter `overlap`.

    It was added later, so its default is silent and keeps earlier uids.
    """
    return categorical(False, True, default=False, structural=True, search=False, silent=True)


def check_overlap(values: Mapping[str, Any], algorithm: str) -> None:
    """Raise ValueError if other hyperparameters rule out `overlap`."""
    if not values["overlap"]:
        return
    if needs_whole_episodes(values):
        raise ValueError(
            f"{algorithm}: an update that waits for whole episodes abandons running ones, but overlap collects on; "
            "leave one of them out"
        )
    if values["normalize_obs"] and values["demonstrated_steps"]:
        raise ValueError(
            f"{algorithm}: demonstrations are normalized as observations are at that moment, but overlap collects new "
            "ones meanwhile; leave overlap or normalize_obs out"
        )


class OverlappedCollector(Stacked):
    """Collection of the next rollout during the update on the last one.

    The last one is stored, member first, and is part of the state: where training resumes, it was not learned from yet.
    """

    scratch = ("acting",)

    def __init__(self, agent: Agent, acting: Agent, envs: Envs, steps: int):
        """Allocate a rollout.

        Args:
            agent: the members' agent, whose networks learn.
            acting: another agent, whose networks stay constant meanwhile.
            envs: the members' environments.
            steps: steps in a rollout.
        """
        self.agent, self.acting = agent, acting
        acting.obs_normalizer, acting.reward_normalizer = agent.obs_normalizer, agent.reward_normalizer
        acting.memory = agent.memory
        members, num_envs, dist, device = envs.num_members, envs.num_envs, agent.policy.distribution, agent.device
        form = (members, steps, num_envs)
        obs_type = torch.float32 if envs.obs_kind == "vector" else torch.uint8
        self._last = {name: torch.zeros(form, device=device) for name in BY_TIME} | {
            "obs": torch.zeros(members, steps + 1, num_envs, *envs.obs_shape, dtype=obs_type, device=device),
            "next_obs": torch.zeros(*form, *envs.obs_shape, dtype=obs_type, device=device),
            "actions": torch.zeros(*form, *dist.action_shape, dtype=dist.action_type, device=device),
            "log_probs": torch.zeros(members, steps * num_envs, device=device),
        }
        if agent.policy.state_size:
            self._last["memory"] = torch.zeros(members, num_envs, agent.policy.state_size, device=device)
        self._filled = torch.zeros(members, 1, device=device)  # 1 once there is a last rollout
        self.tensors = {**self._last, "filled": self._filled}

    @contextmanager
    def rollout(self, envs: Envs, iteration: int, keep_next: bool) -> Iterator[Rollout]:
        """Yield the rollout of an iteration, to learn from inside the context.

        The rollout always has `next_obs`, whether `keep_next` or not. The other arguments are those of `Agent.collect`.
        """
        with torch.no_grad():  # the update changes the learning networks while the acting ones collect
            self.acting.policy.parameters.vector.copy_(self.agent.policy.parameters.vector)
        if not self._filled.all():
            self._store(self._collect(envs, iteration))
        # A new thread has its own number of torch threads, which must be 1: sums round differently on several.
        with ThreadPoolExecutor(1, "rollout", torch.set_num_threads, (1,)) as pool:
            following = pool.submit(self._collect, envs, iteration + 1)
            yield self._stored()
        self._store(following.result())

    def _collect(self, envs: Envs, iteration: int) -> Rollout:
        rollout = self.acting.collect(envs, iteration, keep_next=True)
        return replace(rollout, log_probs=self.acting.evaluate(rollout)[0]["log_probs"])

    @torch.no_grad()
    def _store(self, rollout: Rollout) -> None:
        for name, tensor in self._last.items():
            new: Tensor = getattr(rollout, name)
            tensor.copy_(new.transpose(0, 1) if name in BY_TIME else new)
        self._filled.fill_(1)

    def _stored(self) -> Rollout:
        """Return the last rollout, with the truncations that follow from its ends."""
        by_time = {name: self._last[name].transpose(0, 1).contiguous() for name in BY_TIME}
        rest = {name: x for name, x in self._last.items() if name not in BY_TIME}
        cut = (by_time["ended"] > by_time["terminated"]).cpu().numpy()
        finals = self._last["next_obs"].cpu().numpy()
        truncations = [(t, mask, finals[:, t].copy()) for t, mask in enumerate(cut) if mask.any()]
        return Rollout(truncations=truncations, **by_time, **rest)
