"""When on-policy members are updated: on every rollout, or on whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..experience.rollout import Batch, Rollout
from ..experience.whole_episodes import EpisodeBuffer, needs_whole_episodes
from ..runtime.metric_means import MemberMetrics
from ..signals.guidance import Guidance
from ..signals.host import SignalHost

Update = Callable[[Batch, Tensor | None], dict[str, Tensor]]  # of a batch and the members (P, 1) that may move


class EveryRollout:
    """Updates of all members on every rollout."""

    def update(self, host: SignalHost, guidance: Guidance, rollout: Rollout, update: Update) -> Mapping[str, Tensor]:
        """Update on a rollout, and return metrics.

        Args:
            host: the learner.
            guidance: its signals.
            rollout: with rewards as `Guidance.scale_extrinsic` returns them.
            update: takes all steps on a batch (P, B, ...); its second argument are the members (P, 1) that move, None
                for all.
        """
        batch = host.agent.advantages(rollout, host.hp.gamma, host.hp.gae_lambda)
        return update(guidance.augment_batch(batch, rollout), None)

    def truncate_all(self) -> None:
        """Mark running episodes as truncated, where steps are kept."""


class WholeEpisodes(EpisodeBuffer, EveryRollout):
    """Updates of members that have enough whole episodes.

    Attributes:
        group: members that are updated together, such as the particles of a trial.
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
    """Return when a learner is updated, by its hyperparameters."""
    if needs_whole_episodes(vars(host.hp)):
        return WholeEpisodes(host.hp, host.envs, host.agent, guidance.row_names)
    return EveryRollout()
