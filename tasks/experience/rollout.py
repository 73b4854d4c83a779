"""One rollout: T steps of N environments for each of P members, and what follows from it.

A step computes the actor only, on noise drawn beforehand. Values and log-probabilities are computed afterwards in one
batch over all steps, which costs a fraction of computing them one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..envs import Envs
from ..networks.actor_critic import ActorCritic
from ..networks.recurrent import Memory
from ..rng import streams
from .normalizers import ObservationNormalizer, RewardNormalizer

Cuts = list[tuple[int, NDArray[np.bool_], NDArray[Any]]]


@dataclass
class Rollout:
    """What happened in T steps.

    Attributes:
        obs: (P, T + 1, N, ...), as the networks saw them; the last one is where the next rollout starts.
        actions: (P, T, N, ...).
        rewards, terminated, ended: (T, P, N); ended = terminated or truncated, as 0 and 1.
        cuts: (step, mask (P, N), final observations (P, N, ...)) of steps at which an episode was truncated.
        memory: (P, N, S), what was remembered before the first step by policies that remember.
        next_obs: (P, T, N, ...), what really followed, also where an episode ended; if that was asked for.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    ended: Tensor
    cuts: Cuts
    memory: Tensor | None = None
    next_obs: Tensor | None = None


def draw_noise(
    policy: ActorCritic, keys: streams.Bits, iteration: int, shape: tuple[int, int], device: torch.device
) -> Tensor:
    """Noise for the actions of one rollout, (T, P, N, noise_size); keys (P,), shape (T, N)."""
    steps, num_envs = shape
    size = steps * num_envs * policy.distribution.noise_size
    uniforms = streams.open_uniform(keys[:, None], np.arange(iteration * size, (iteration + 1) * size))
    noise = policy.distribution.noise(uniforms.reshape(len(keys), steps, num_envs, -1)).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(noise.transpose(1, 0, 2, 3))).to(device)


def collect(
    envs: Envs,
    policy: ActorCritic | Memory,
    noise: Sequence[Tensor] | Tensor,
    normalize_obs: ObservationNormalizer | None = None,
    normalize_reward: RewardNormalizer | None = None,
    reset: Callable[[NDArray[np.bool_]], None] | None = None,
    keep_next: bool = False,
) -> Rollout:
    """Acts for len(noise) steps in every environment; `reset` is told where episodes ended, (P, N), at each step.

    noise: for each step what the policy's distribution samples with, (P, N, ...); keep_next: whether to keep next_obs.
    """
    steps, (members, num_envs) = len(noise), noise[0].shape[:2]
    device, dist = noise[0].device, policy.distribution
    kind = torch.float32 if envs.obs_kind == "vector" else torch.uint8
    # Made outside of inference mode, since a loss will be differentiated through them.
    obs = torch.empty(members, steps + 1, num_envs, *envs.obs_shape, dtype=kind, device=device)
    actions = torch.empty(members, steps, num_envs, *dist.action_shape, dtype=dist.action_type, device=device)
    rewards, terminated, truncated = (np.empty((steps, members, num_envs), dtype=t) for t in (np.float32, bool, bool))
    cuts = []
    next_obs = torch.empty_like(obs[:, 1:], memory_format=torch.contiguous_format) if keep_next else None

    def see(learn: bool) -> Tensor:
        current = envs.obs if normalize_obs is None else normalize_obs(envs.obs, learn)
        return torch.from_numpy(np.ascontiguousarray(current)).to(device)

    with torch.inference_mode():
        for t, (obs_t, action_t, noise_t) in enumerate(zip(obs.unbind(1), actions.unbind(1), noise, strict=False)):
            current = see(learn=True)
            obs_t.copy_(current)
            action = dist.sample(policy.policy(current), noise_t)
            if action.is_floating_point():
                # A diverged member is found at the epoch's end; until then it must not crash a simulator.
                action = torch.nan_to_num(action)
            action_t.copy_(action)
            step = envs.step(action.cpu().numpy())
            rewards[t], terminated[t], truncated[t] = step.reward, step.terminated, step.truncated
            if normalize_reward is not None:
                rewards[t] = normalize_reward(rewards[t], terminated[t] | truncated[t])
            if reset is not None:
                reset(terminated[t] | truncated[t])
            if next_obs is not None:
                real = step.next_obs if normalize_obs is None else normalize_obs(step.next_obs, learn=False)
                next_obs[:, t].copy_(torch.from_numpy(np.ascontiguousarray(real)))
            cut = truncated[t] & ~terminated[t]
            if cut.any():
                final = step.next_obs if normalize_obs is None else normalize_obs(step.next_obs, learn=False)
                cuts.append((t, cut, final))
        obs[:, steps] = see(learn=False)

    def floats(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(device)

    return Rollout(
        obs, actions, floats(rewards), floats(terminated), floats(terminated | truncated), cuts, next_obs=next_obs
    )


@torch.no_grad()
def evaluate_values(rollout: Rollout, value: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """vₜ and v'ₜ, both (T, P, N): the values of what was seen, and of what really followed.

    At a truncation the final observation is valued, not the first one of the next episode.
    """
    steps, num_envs = rollout.obs.shape[1] - 1, rollout.obs.shape[2]
    values = value(rollout.obs.flatten(1, 2)).unflatten(1, (steps + 1, num_envs)).transpose(0, 1).contiguous()
    next_values = values[1:].clone()
    if rollout.cuts:
        value_cuts(rollout.cuts, value, next_values)
    return values[:-1], next_values


def value_cuts(cuts: Cuts, value: Callable[[Tensor], Tensor], next_values: Tensor) -> None:
    """Puts the values of final observations into next_values (T, P, N), in packs of N per member.

    A pack has the same shape whatever happens in the neighbours, because the last bits of a matrix product depend on
    its shape; a member with fewer truncations than another fills its packs with zeros.
    """
    where = [(t, p, n) for t, mask, _ in cuts for p, n in zip(*np.nonzero(mask), strict=True)]
    finals = {t: final for t, _, final in cuts}
    members, num_envs = next_values.shape[1:]
    taken = [0] * members
    packs: list[NDArray[Any]] = []
    slots = []
    for t, p, n in where:
        pack, slot = divmod(taken[p], num_envs)
        taken[p] += 1
        if pack == len(packs):
            packs.append(np.zeros((members, *finals[t].shape[1:]), dtype=finals[t].dtype))
        packs[pack][p, slot] = finals[t][p, n]
        slots.append((pack, p, slot))
    results = torch.stack([value(torch.from_numpy(pack).to(next_values.device)) for pack in packs])
    at, slot_at = torch.tensor(where).T, torch.tensor(slots).T
    next_values[tuple(at)] = results[tuple(slot_at)]


def by_member(x: Tensor) -> Tensor:
    """(T, P, N) -> (P, T * N), contiguous: a sum over a strided row has other last bits than one over a dense row."""
    return x.transpose(0, 1).flatten(1).contiguous()


def by_sequence(x: Tensor) -> Tensor:
    """(T, P, N) -> (P, N * T), contiguous: the steps of each environment in a row."""
    return x.permute(1, 2, 0).flatten(1).contiguous()


def permutations(keys: streams.Bits, iteration: int, epochs: int, size: int) -> NDArray[np.int64]:
    """A random order of `size` things for every member and update epoch, (epochs, P, size); keys (P,)."""
    first = iteration * epochs * size
    counters = np.arange(first, first + epochs * size).reshape(epochs, 1, size)
    return np.argsort(streams.bits(keys[:, None], counters), axis=-1)


def shuffled(batch: Mapping[str, Tensor], order: NDArray[np.int64], parts: int) -> Iterator[dict[str, Tensor]]:
    """The minibatches of tensors (P, B, ...) in this order (P, B), each (P, B / parts, ...) and contiguous."""
    members, size = order.shape
    rows = order + size * np.arange(members)[:, None]  # of the (P * B, ...) tensors
    index = torch.from_numpy(np.ascontiguousarray(rows.reshape(members, parts, -1).transpose(1, 0, 2)).reshape(-1))
    mixed = {
        name: x.flatten(0, 1).index_select(0, index.to(x.device)).unflatten(0, (parts, members, size // parts))
        for name, x in batch.items()
    }
    for part in range(parts):
        yield {name: x[part] for name, x in mixed.items()}
