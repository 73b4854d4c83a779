"""Scheduling of on-policy training: when to collect rollouts, when to update.

With `overlap`, the update on rollout k runs while rollout k + 1 is collected with the policy from before that update.
The data are therefore always one update old, however long either takes, and PPO's ratios are relative to the policy
that acted. Waiting for slow simulators then costs no time. ML-Agents calls this `threaded`, with a lag that varies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...spaces import Dimension, categorical
from ..checkpoint.member_state import Stacked
from ..envs import Envs
from ..experience.rollout import Agent, Batch, Rollout
from ..experience.whole_episodes import EpisodeBuffer, needs_whole_episodes
from ..learner import Learner
from ..networks.encoders import ENCODERS
from ..networks.optimizers import SCHEDULED
from ..runtime.metric_means import MemberMetrics
from ..signals.guidance import Guidance
from ..signals.host import SignalHost
from .on_policy import make_agent

BY_TIME = ("rewards", "terminated", "ended")  # (T, P, N)
Update = Callable[[Batch, Tensor | None], dict[str, Tensor]]  # of a batch and the members (P, 1) that may move


class EveryRollout:
    """Updates of all members on every rollout."""

    def update(self, host: SignalHost, guidance: Guidance, rollout: Rollout, update: Update) -> Mapping[str, Tensor]:
        """Update on a rollout, and return metrics.

        Args:
            host: the learner.
            guidance: its signals.
            rollout: rollout whose rewards `Guidance.scale_extrinsic` has scaled.
            update: function that takes all gradient steps on a batch (P, B, ...); its second argument is the members to
                update, (P, 1), or None for all.
        """
        batch = host.agent.advantages(rollout, host.hp.gamma, host.hp.gae_lambda)
        return update(guidance.augment_batch(batch, rollout), None)

    def truncate_all(self) -> None:
        """Mark running episodes as truncated, if steps are stored."""


class WholeEpisodes(EpisodeBuffer, EveryRollout):
    """Updates of the members that have collected enough whole episodes.

    Attributes:
        group: number of neighboring members that are updated together, such as the particles of a trial.
    """

    group = 1

    def update(self, host: SignalHost, guidance: Guidance, rollout: Rollout, update: Update) -> Mapping[str, Tensor]:
        """Update the members that are ready, and abandon their running episodes."""
        self.add(rollout, guidance.compute_rewards(rollout))
        ready, used = self.ready_members()
        ready = ready.reshape(-1, self.group).all(1).repeat(self.group)
        if not ready.any():
            return {}
        batch = guidance.combine_advantages(self.batch(used, host.hp.gamma, host.hp.gae_lambda), self.rows())
        metrics = update(host.agent.with_log_probs(batch), torch.from_numpy(ready).to(host.device).unsqueeze(1))
        metrics["rollouts"] = self.rollouts(used)
        unfinished = ready[:, None] & self.running()
        host.envs.abandon(unfinished)
        host.agent.reset(unfinished)
        self.clear(ready)
        return MemberMetrics(metrics, ready)


def updates_of(host: SignalHost, guidance: Guidance) -> EveryRollout:
    """Return the update rule that a learner's hyperparameters ask for."""
    if needs_whole_episodes(vars(host.hp)):
        return WholeEpisodes(host.hp, host.envs, host.agent, guidance.row_names)
    return EveryRollout()


def can_be_one_graph(host: SignalHost) -> bool:
    """Return whether all gradient steps can run as one CUDA graph.

    They cannot if a coefficient follows a schedule, if batches of whole episodes vary in size, if another thread acts
    meanwhile, or if the encoder is a user's own.
    """
    hp = host.hp
    if host.device.type != "cuda" or hp.overlap or needs_whole_episodes(vars(hp)) or hp.model.encoder not in ENCODERS:
        return False
    schedules = [vars(hp)[f"{name}_schedule"] for name in SCHEDULED if f"{name}_schedule" in vars(hp)]
    return all(schedule.name == "constant" for schedule in schedules)


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


class Collector:
    """Collection of each rollout when it is needed."""

    def __init__(self, agent: Agent):
        self.agent = agent

    @staticmethod
    def of(learner: Learner) -> Collector:
        """Return the collector that a learner's hyperparameters ask for."""
        assert learner.agent is not None
        if not learner.hp.overlap:
            return Collector(learner.agent)
        return OverlappedCollector(learner.agent, make_agent(learner), learner.envs, learner.hp.num_steps)

    @contextmanager
    def rollout(self, envs: Envs, iteration: int, keep_next: bool) -> Iterator[Rollout]:
        """Yield the rollout of an iteration, to learn from inside the context.

        Args:
            envs: the members' environments.
            iteration: number of the iteration.
            keep_next: whether the rollout needs `next_obs`.
        """
        yield self.agent.collect(envs, iteration, keep_next)


class OverlappedCollector(Collector, Stacked):
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
        super().__init__(agent)
        self.acting = acting
        acting.obs_normalizer, acting.reward_normalizer = agent.obs_normalizer, agent.reward_normalizer
        acting.memory = agent.memory
        members, num_envs, dist, device = envs.num_members, envs.num_envs, agent.policy.distribution, agent.device
        form = (members, steps, num_envs)
        kind = torch.float32 if envs.obs_kind == "vector" else torch.uint8
        self._last = {name: torch.zeros(form, device=device) for name in BY_TIME} | {
            "obs": torch.zeros(members, steps + 1, num_envs, *envs.obs_shape, dtype=kind, device=device),
            "next_obs": torch.zeros(*form, *envs.obs_shape, dtype=kind, device=device),
            "actions": torch.zeros(*form, *dist.action_shape, dtype=dist.action_type, device=device),
            "log_probs": torch.zeros(members, steps * num_envs, device=device),
        }
        if agent.policy.state_size:
            self._last["memory"] = torch.zeros(members, num_envs, agent.policy.state_size, device=device)
        self._filled = torch.zeros(members, 1, device=device)  # 1 once there is a last rollout
        self.tensors = {**self._last, "filled": self._filled}

    @contextmanager
    def rollout(self, envs: Envs, iteration: int, keep_next: bool) -> Iterator[Rollout]:
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
