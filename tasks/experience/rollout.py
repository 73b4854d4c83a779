"""Rollouts, and the agent that collects and evaluates them.

A rollout has T steps of N environments for each of P members. During collection only the actor is computed, with noise
drawn beforehand. Values and log-probabilities are computed afterwards, in one batch over all steps, which costs a
fraction of computing them step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..envs import Envs
from ..networks.actor_critic import ActorCritic
from ..networks.compiled_actor_critic import CompiledActorCritic
from ..networks.distributions import Distribution, finite
from ..networks.recurrent import States
from ..rng import streams, tensors
from .normalizers import ObservationNormalizer, RewardNormalizer
from .returns import gae
from .turns import outcomes_of

Noise = Callable[[int], Sequence[Tensor] | Tensor]  # the number of a rollout -> (P, N, ...) for each of its steps
Batch = dict[str, Tensor]
Truncations = list[tuple[int, NDArray[np.bool_], NDArray[Any]]]  # see `Rollout`


@dataclass
class Rollout:
    """A rollout of T steps.

    The next rollout may overwrite its tensors.

    Attributes:
        obs: (P, T + 1, N, ...), normalized; the next rollout starts at the last one.
        actions: (P, T, N, ...).
        rewards: (T, P, N).
        terminated: (T, P, N), 0 or 1.
        ended: (T, P, N), 0 or 1; terminated or truncated.
        truncations: for each step with truncated episodes: the step, a mask (P, N), and final observations (P, N, ...).
        next_obs: (P, T, N, ...), the observations that followed, final ones where an episode ended; None unless kept.
        memory: (P, N, S), recurrent states before the first step; None for a policy without a memory.
        log_probs: (P, B), log-probabilities of the actions under the policy that acted; None if that is the current
            one.
        present: (T, P, N), 0 where an agent was absent or its action did not count; None if all always count.
        last: (T, P, N), the last step before an agent acts again, see `turns`; None if all always act.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    ended: Tensor
    truncations: Truncations
    next_obs: Tensor | None = None
    memory: Tensor | None = None
    log_probs: Tensor | None = None
    present: Tensor | None = None
    last: Tensor | None = None

    def following(self, next_values: Tensor) -> Tensor:
        """Return the values of what follows each action.

        They are chosen among those of what follows each step, (T, P, N).
        """
        return next_values if self.last is None else next_values.gather(0, self.last)


class StepNoise:
    """Noise of actions, new at each step, from the members' own streams."""

    def __init__(
        self, keys: streams.Bits, distribution: Distribution, steps: int, num_envs: int, device: torch.device | str
    ):
        """Store the random streams (P,) and a rollout's shape (T, N)."""
        self.keys, self.distribution, self.device = keys, distribution, torch.device(device)
        self.steps, self.num_envs = steps, num_envs

    def __call__(self, rollout: int) -> Tensor:
        """Return the noise of the rollout with this number.

        It is (T, P, N, noise_size).
        """
        size = self.steps * self.num_envs * self.distribution.noise_size
        if self.device.type == "cuda":  # other devices, such as MPS, may lack float64
            return self._on_device(rollout * size, size)
        uniforms = streams.open_uniform(self.keys[:, None], np.arange(rollout * size, (rollout + 1) * size))
        uniforms = uniforms.reshape(len(self.keys), self.steps, self.num_envs, -1)
        noise = self.distribution.noise(uniforms).astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(noise.transpose(1, 0, 2, 3))).to(self.device)

    def _on_device(self, first: int, size: int) -> Tensor:
        """Return the noise, computed on the device.

        It uses `size` numbers of each stream, starting at `first`.
        """
        counters = torch.arange(first, first + size, device=self.device)
        uniforms = tensors.open_uniform(tensors.key_tensor(self.keys, self.device)[:, None], counters)
        uniforms = uniforms.view(len(self.keys), self.steps, self.num_envs, -1)
        return self.distribution.noise(uniforms).float().transpose(0, 1).contiguous()


class Agent:
    """A policy that acts for P members and evaluates its rollouts.

    Each member has N environments. In a batch every step stands alone: (P, B, ...) with B = T * N. `RecurrentAgent`
    batches whole sequences.

    Attributes:
        memory: recurrent states of the running episodes; None without a recurrent policy.
    """

    memory: States | None

    def __init__(
        self,
        policy: ActorCritic,
        noise: Noise,
        acting_noise: Callable[[int, streams.Keys | None], Noise],
        num_envs: int,
        obs_normalizer: ObservationNormalizer | None = None,
        reward_normalizer: RewardNormalizer | None = None,
    ):
        """Bundle a policy with its noise and normalizers.

        Args:
            policy: networks of the members.
            noise: noise of rollouts.
            acting_noise: function that returns the noise for a number of episodes, drawn from keys (None for
                evaluation's).
            num_envs: N.
            obs_normalizer: scales observations, if any.
            reward_normalizer: scales rewards, if any.
        """
        self.policy, self.device = policy, policy.parameters.vector.device
        self.noise, self.acting_noise = noise, acting_noise
        self.memory = policy.states(num_envs)
        self.obs_normalizer, self.reward_normalizer = obs_normalizer, reward_normalizer

    @property
    def parts(self) -> dict[str, object]:
        """Parts that may hold state, by name."""
        return {name: getattr(self, name) for name in ("policy", "obs_normalizer", "reward_normalizer", "memory")}

    def collect(self, envs: Envs, iteration: int, keep_next: bool = False) -> Rollout:
        """Act for one rollout in every environment.

        Args:
            envs: the members' environments.
            iteration: number of the iteration, which selects the noise.
            keep_next: whether to store the next observations.
        """
        noise = self.noise(iteration)
        rollout = self._played(envs, noise, keep_next) or self._stepped(envs, noise, keep_next)
        if self.reward_normalizer is not None:
            rewards, ended = rollout.rewards.cpu().numpy(), rollout.ended.cpu().numpy() > 0
            present = None if rollout.present is None else rollout.present.cpu().numpy() > 0
            rollout.rewards = torch.from_numpy(self.reward_normalizer(rewards, ended, present)).to(self.device)
        return rollout

    def _stepped(self, envs: Envs, noise: Sequence[Tensor] | Tensor, keep_next: bool) -> Rollout:
        """Return a rollout made step by step."""
        dist = self.policy.distribution
        steps, members, num_envs = len(noise), envs.num_members, envs.num_envs
        dtype = torch.float32 if envs.obs_kind == "vector" else torch.uint8
        # Allocated outside of inference mode, since a loss will be differentiated through them.
        obs = torch.empty(members, steps + 1, num_envs, *envs.obs_shape, dtype=dtype, device=self.device)
        actions = torch.empty(members, steps, num_envs, *dist.action_shape, dtype=dist.action_type, device=self.device)
        rewards, terminated, ended = (np.empty((steps, members, num_envs), dtype=t) for t in (np.float32, bool, bool))
        present = None if envs.present is None else np.empty((steps, members, num_envs), bool)
        truncations = []
        next_obs = torch.empty_like(obs[:, 1:], memory_format=torch.contiguous_format) if keep_next else None
        with torch.inference_mode():
            for t, (obs_t, action_t, noise_t) in enumerate(zip(obs.unbind(1), actions.unbind(1), noise, strict=False)):
                if present is not None:
                    present[t] = envs.present
                obs_t.copy_(current := self._tensor(self._normalized(envs.obs, learn=True, counted=envs.present)))
                action = self._sample(current, noise_t)
                action_t.copy_(action)
                step = envs.step(action.cpu().numpy())
                rewards[t], terminated[t], ended[t] = step.reward, step.terminated, step.terminated | step.truncated
                self._end_episodes(ended[t])
                if next_obs is not None:
                    next_obs[:, t].copy_(self._tensor(self._normalized(step.next_obs)))
                if (mask := ended[t] & ~terminated[t]).any():
                    truncations.append((t, mask, self._normalized(step.next_obs)))
            obs[:, steps] = self._tensor(self._normalized(envs.obs))

        def floats(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array.astype(np.float32)).to(self.device)

        counted = last = None
        if present is not None:
            assert envs.present is not None
            *outcomes, index = outcomes_of(rewards, terminated, ended, present, envs.present)
            rewards, terminated, ended, present = outcomes
            counted, last = floats(present), torch.from_numpy(index).to(self.device)
        rows = floats(rewards), floats(terminated), floats(ended)
        return Rollout(obs, actions, *rows, truncations, next_obs, present=counted, last=last)

    def _played(self, envs: Envs, noise: Sequence[Tensor] | Tensor, keep_next: bool) -> Rollout | None:
        """Return a rollout made by a kernel, without stopping at each step.

        Return None if no kernel covers it.
        """
        policy = self.policy
        if self.obs_normalizer is not None or not isinstance(noise, Tensor):
            return None
        if self.device.type == "cuda" and type(self) is Agent:
            return self.play_on_device(envs, noise, keep_next)
        if not isinstance(policy, CompiledActorCritic) or (running := envs.playable()) is None:
            return None
        steps = policy.play(noise, *running)
        envs.resume(steps.obs[:, -1], running[1].elapsed, steps.ended, steps.returns, steps.lengths)
        cut = steps.ended > steps.terminated
        truncations = [(t, cut[t], steps.next_obs[:, t]) for t in np.unique(cut.nonzero()[0]).tolist()]
        obs, rewards, terminated, ended, next_obs = map(
            torch.from_numpy, (steps.obs, steps.rewards, steps.terminated, steps.ended, steps.next_obs)
        )
        actions = torch.from_numpy(steps.numbers if policy.networks.gaussian else steps.choices)
        actions = actions.view(*actions.shape[:3], *policy.distribution.action_shape)
        return Rollout(obs, actions, rewards, terminated, ended, truncations, next_obs if keep_next else None)

    def play_on_device(self, envs: Envs, noise: Tensor, keep_next: bool) -> Rollout | None:
        if (steps := envs.play_on_device(self.policy.sample, noise)) is None:
            return None
        cut = (steps.ended > steps.terminated).cpu().numpy()
        finals = steps.next_obs.cpu().numpy() if cut.any() else None
        truncations = (
            [] if finals is None else [(t, cut[t], finals[:, t]) for t in np.unique(cut.nonzero()[0]).tolist()]
        )
        ends = (steps.rewards, steps.terminated, steps.ended)
        return Rollout(steps.obs, steps.actions, *ends, truncations, steps.next_obs if keep_next else None)

    def _normalized(
        self, obs: NDArray[Any], learn: bool = False, counted: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs, learn, counted)

    def _tensor(self, obs: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(obs)).to(self.device)

    def _sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        return self.policy.sample(obs, noise)

    def _end_episodes(self, ended: NDArray[np.bool_]) -> None:
        """Reset the recurrent states of ended episodes, (P, N)."""

    def reset(self, mask: NDArray[np.bool_]) -> None:
        """Abandon the running episodes of these environments, (P, N) or (1, 1)."""
        if self.reward_normalizer is not None:
            self.reward_normalizer.reset(mask)
        self._end_episodes(mask)

    def truncate_all(self) -> None:
        """Abandon all running episodes, whose environments are rebuilt."""
        self.reset(np.ones((1, 1), np.bool_))

    @torch.no_grad()
    def advantages(self, rollout: Rollout, gamma: Tensor, gae_lambda: Tensor) -> Batch:
        """Return a batch to learn from, with advantages and TD(λ) returns.

        It has obs, actions, log_probs, values, advantages (see `gae`) and returns, each (P, B, ...). Where agents can
        be absent, it has weights, which are 0 for their rows.
        """
        batch, values, next_values = self.evaluate(rollout)
        ends = (rollout.terminated, rollout.ended)
        advantages = gae(rollout.rewards, values, next_values, *ends, gamma, gae_lambda, rollout.present)
        rows = {"values": values, "advantages": advantages, "returns": advantages + values}
        if rollout.present is not None:
            rows["weights"] = rollout.present
        return batch | {name: self.flatten(x) for name, x in rows.items()}

    @torch.no_grad()
    def evaluate(self, rollout: Rollout) -> tuple[Batch, Tensor, Tensor]:
        """Return a batch with log-probabilities, and the `values` of a rollout.

        The batch has obs, actions and log_probs, each (P, B, ...).
        """
        obs, actions, log_probs = rollout.obs[:, :-1].flatten(1, 2), rollout.actions.flatten(1, 2), rollout.log_probs
        log_probs = self.policy.log_probs(obs, actions) if log_probs is None else log_probs
        return {"obs": obs, "actions": actions, "log_probs": log_probs}, *evaluate_values(rollout, self.policy.value)

    @torch.no_grad()
    def with_log_probs(self, batch: Batch) -> Batch:
        """Return a batch (P, B, ...) with current log-probabilities of its actions."""
        params, _ = self.policy(batch)
        return {**batch, "log_probs": self.policy.distribution.log_prob_and_entropy(params, batch["actions"])[0]}

    def values(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return vₜ and v'ₜ, each (T, P, N), see `evaluate_values`."""
        return evaluate_values(rollout, self.policy.value)

    def batch(self, obs: Tensor, actions: Tensor, ended: Tensor, memory: Tensor | None = None) -> Batch:
        """Return obs and actions as inputs of the policy.

        They are (P, T, N, ...) before, and (P, B, ...) in the batch.
        """
        return {"obs": self.flatten_steps(obs), "actions": self.flatten_steps(actions)}

    def flatten_steps(self, x: Tensor) -> Tensor:
        """Reshape (P, T, N, ...) to (P, B, ...)."""
        return x.flatten(1, 2)

    def flatten(self, x: Tensor) -> Tensor:
        """Reshape (T, P, N) to (P, B), contiguous (see Exactness in networks/mlp.py)."""
        return x.transpose(0, 1).flatten(1).contiguous()

    def minibatches(
        self, batch: Mapping[str, Tensor], keys: streams.Bits, iteration: int, epochs: int, parts: int
    ) -> Iterator[Batch]:
        """Yield a batch's minibatches in random order.

        Each of `epochs` passes over the batch yields `parts` minibatches, (P, B / parts, ...).
        """
        for order in permutations(keys, iteration, epochs, batch["obs"].shape[1], self.device):
            yield from shuffled(batch, order, parts)

    def actor(
        self, episodes: int, deterministic: bool = True, keys: streams.Keys | None = None, memory: Any = None
    ) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return a function from obs to actions; see `Learner.actor`."""
        action_params = self._begin(memory or self.policy.states(episodes))
        dist, noise = self.policy.distribution, self.acting_noise(episodes, keys)
        drawn = chain.from_iterable(map(noise, count()))  # the noise of one step after another

        @torch.inference_mode()
        def act(obs: NDArray[Any]) -> NDArray[Any]:
            params = action_params(self._tensor(self._normalized(obs)))
            action = dist.mode(params) if deterministic else finite(dist.sample(params, next(drawn)))
            return action.cpu().numpy()

        return act

    @torch.inference_mode()
    def state_values(self, obs: NDArray[Any], memory: Any) -> NDArray[Any]:
        """Return v(s), (P, N), of obs (P, N, ...); see `Learner.state_values`."""
        return self._value(self._tensor(self._normalized(obs)), memory).cpu().numpy()

    def _value(self, obs: Tensor, memory: Any) -> Tensor:
        return self.policy.value(obs)

    def greedy(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return greedy actions and recurrent states; see `Learner.greedy`."""
        obs = obs if self.obs_normalizer is None else self.obs_normalizer.of_batch(obs)
        params, state = self._params_after(obs, state)
        return self.policy.distribution.mode(params), state

    def _params_after(self, obs: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.policy.action_params(obs), None

    def _begin(self, memory: Any) -> Callable[[Tensor], Tensor]:
        """Return a function from obs to the policy's action parameters.

        It advances the recurrent states, if there are any.
        """
        return self.policy.action_params


@torch.no_grad()
def evaluate_values(rollout: Rollout, value: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return vₜ and v'ₜ, each (T, P, N).

    vₜ are the values of the observations, v'ₜ those of the next ones, in a game of turns those of the agent's next
    turn. At a truncation that is the final observation, not the first of the next episode.
    """
    steps, num_envs = rollout.obs.shape[1] - 1, rollout.obs.shape[2]
    values = value(rollout.obs.flatten(1, 2)).unflatten(1, (steps + 1, num_envs)).transpose(0, 1).contiguous()
    next_values = values[1:].clone()
    if rollout.truncations:
        bootstrap(rollout.truncations, value, next_values)
    return values[:-1], rollout.following(next_values)


def bootstrap(truncations: Truncations, value: Callable[[Tensor], Tensor], next_values: Tensor) -> None:
    """Write the values of final observations into next_values (T, P, N).

    They are computed in packs of N per member. A pack has the same shape whatever the other members' episodes are (see
    Exactness in networks/mlp.py); a member with fewer truncations fills its packs with zeros.
    """
    indices = [(t, p, n) for t, mask, _ in truncations for p, n in zip(*np.nonzero(mask), strict=True)]
    finals = {t: final for t, _, final in truncations}
    members, num_envs = next_values.shape[1:]
    counts = [0] * members
    packs: list[NDArray[Any]] = []
    slots = []
    for t, p, n in indices:
        pack, slot = divmod(counts[p], num_envs)
        counts[p] += 1
        if pack == len(packs):
            packs.append(np.zeros((members, *finals[t].shape[1:]), dtype=finals[t].dtype))
        packs[pack][p, slot] = finals[t][p, n]
        slots.append((pack, p, slot))
    results = torch.stack([value(torch.from_numpy(pack).to(next_values.device)) for pack in packs])
    next_values[tuple(torch.tensor(indices).T)] = results[tuple(torch.tensor(slots).T)]


def permutations(
    keys: streams.Bits, iteration: int, epochs: int, size: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Return random orders of `size` rows, (epochs, P, size).

    Each depends on the member's key (P,), the iteration and the update epoch alone.
    """
    first = iteration * epochs * size
    if torch.device(device).type == "cuda":
        counters = torch.arange(first, first + epochs * size, device=device).view(epochs, 1, size)
        return tensors.in_order(tensors.bits(tensors.key_tensor(keys, device)[:, None], counters))
    numbers = streams.bits(keys[:, None], np.arange(first, first + epochs * size).reshape(epochs, 1, size))
    return torch.from_numpy(np.argsort(numbers, axis=-1)).to(device)


def shuffled(batch: Mapping[str, Tensor], order: Tensor, parts: int) -> Iterator[Batch]:
    """Yield the minibatches of a batch in the given order (P, B).

    The batch's tensors are (P, B, ...), each minibatch's (P, B / parts, ...) and contiguous.
    """
    members, size = order.shape
    rows = order + size * torch.arange(members, device=order.device)[:, None]  # of the (P * B, ...) tensors
    index = rows.view(members, parts, -1).transpose(0, 1).reshape(-1)
    mixed = {
        name: x.flatten(0, 1).index_select(0, index).unflatten(0, (parts, members, size // parts))
        for name, x in batch.items()
    }
    for part in range(parts):
        yield {name: x[part] for name, x in mixed.items()}
