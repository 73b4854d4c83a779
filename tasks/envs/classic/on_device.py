"""Rollouts of classic control on the policy's device.

One step of all environments and their policies is captured as a CUDA graph and replayed for each step of a rollout.
Nothing is transferred in between. On other devices the same operations run one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...cuda.graphs import beside, capture
from ...rng import tensors
from ...runtime.progress import tick
from ..base.envs import Sample
from .dynamics import Model

STEPS_AT_ONCE = 4096  # steps between two ticks, which show that this process makes progress


class Running(NamedTuple):
    """State of M running episodes between rollouts, as `ClassicEnvs` keeps it.

    Attributes:
        state: (components, M).
        episode, elapsed: number of the episode, and its steps so far, each (M,).
        returns: return so far, (M,).
    """

    state: NDArray[np.float64]
    episode: NDArray[np.int64]
    elapsed: NDArray[np.int64]
    returns: NDArray[np.float64]


class DeviceRollouts:
    """Rollouts of P members with N environments each, M in all.

    Attributes:
        obs: (P, T + 1, N, D); the next rollout starts at the last ones.
        next_obs: (P, T, N, D), final ones where an episode ended.
        rewards, terminated, ended: (T, P, N) as float32.
        returns, lengths: (T, P, N), return and length of the running episodes after each step.
    """

    def __init__(
        self,
        model: Model,
        sample: Sample,
        noise: Tensor,
        obs_size: int,
        keys: NDArray[np.uint64],
        limit: int,
        bounds: tuple[float, float] | None,
    ):
        """Allocate a rollout.

        Args:
            model: the equations.
            sample: the members' policies; they read their parameters at the time of a rollout.
            noise: noise of a rollout, (T, P, N, n); only its shape is used here.
            obs_size: D.
            keys: random streams of the environments' initial states, (M,).
            limit: steps after which an episode is truncated.
            bounds: bounds of the number that acts; None for choices.
        """
        steps, members, num_envs, _ = noise.shape
        self.model, self.sample, self.limit, self.bounds = model, sample, limit, bounds
        self.noise, self.shape, device = torch.empty_like(noise), (members, num_envs), noise.device
        low, high = torch.tensor(model.start, dtype=torch.float64, device=device).T
        self._low, self._width = low[:, None], (high - low)[:, None]
        self._keys = tensors.key_tensor(keys, device)
        self._parts = torch.arange(len(model.start), device=device)[:, None]
        size = members * num_envs
        self.state = torch.zeros(len(model.start), size, dtype=torch.float64, device=device)
        self.episode, self.elapsed = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(2))
        self.total = torch.zeros(size, dtype=torch.float64, device=device)
        self.time = torch.zeros(1, dtype=torch.int64, device=device)
        self.obs = torch.empty(members, steps + 1, num_envs, obs_size, device=device)
        self.next_obs = torch.empty(members, steps, num_envs, obs_size, device=device)
        self.rewards, self.terminated, self.ended = (torch.empty(steps, *self.shape, device=device) for _ in range(3))
        self.returns = torch.empty(steps, *self.shape, dtype=torch.float64, device=device)
        self.lengths = torch.empty(steps, *self.shape, dtype=torch.int64, device=device)
        self._actions: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def actions(self) -> Tensor:
        """Actions of the last rollout, (P, T, N, ...)."""
        assert self._actions is not None
        return self._actions

    @torch.no_grad()
    def play(self, running: Running, noise: Tensor) -> Running:
        """Play a rollout; return the episodes that are running at its end."""
        self.noise.copy_(noise)
        with torch.cuda.device_of(noise):
            if self.noise.is_cuda and self._graph is None:
                self._load(running)
                beside(self._step)  # compiles kernels and allocates tensors before the capture
                self._graph, _ = capture(self._step)
            self._load(running)
            self.obs[:, 0] = self._observed(self.state)
            for step in range(len(noise)):
                self._step() if self._graph is None else self._graph.replay()
                if step % STEPS_AT_ONCE == 0:
                    tick()
        kept = (self.state, self.episode, self.elapsed, self.total)
        return Running(*(x.cpu().numpy() for x in kept))

    def _load(self, running: Running) -> None:
        for mine, value in zip((self.state, self.episode, self.elapsed, self.total), running, strict=True):
            mine.copy_(torch.from_numpy(value))
        self.time.zero_()

    def _step(self) -> None:
        """Act and step in every environment; start new episodes where one ended."""
        now, model = self.time, self.model
        actions = self.sample(self.obs.index_select(1, now).squeeze(1), self.noise.index_select(0, now).squeeze(0))
        if self._actions is None:
            members, steps = self.next_obs.shape[:2]
            self._actions = actions.new_empty(members, steps, *actions.shape[1:])
        self._actions.index_copy_(1, now, actions.unsqueeze(1))
        flat = actions.reshape(-1)
        flat = flat.double() if self.bounds is None else flat.clamp(*self.bounds)
        before = tuple(self.state.to(torch.float32 if model.dtype is np.float32 else torch.float64))
        after, reward, over = model.step(torch, before, flat)
        self.state.copy_(torch.stack([part.double() for part in after]))
        self.total += reward
        self.elapsed += 1
        ended = over | (self.elapsed >= self.limit)
        next_obs = self._observed(self.state)
        rewards = torch.zeros_like(self.total) + reward
        by_step = {"rewards": rewards, "terminated": over, "ended": ended, "returns": self.total}
        for name, values in {**by_step, "lengths": self.elapsed}.items():
            rows: Tensor = getattr(self, name)
            rows.index_copy_(0, now, values.to(rows.dtype).view(1, *self.shape))
        self.next_obs.index_copy_(1, now, next_obs.unsqueeze(1))
        self.episode += ended
        self.state.copy_(torch.where(ended, self._first_states(), self.state))
        self.total.masked_fill_(ended, 0.0)
        self.elapsed.masked_fill_(ended, 0)
        following = torch.where(ended.view(*self.shape, 1), self._observed(self.state), next_obs)
        now += 1
        self.obs.index_copy_(1, now, following.unsqueeze(1))

    def _observed(self, state: Tensor) -> Tensor:
        """Return the observations (P, N, D) of states."""
        return torch.stack(self.model.observe(torch, tuple(state)), -1).float().view(*self.shape, -1)

    def _first_states(self) -> Tensor:
        """Return the initial states of the current episodes, (components, M)."""
        drawn = tensors.uniform(self._keys, self.episode * len(self._parts) + self._parts)
        states = self._low + self._width * drawn
        return states.float().double() if self.model.dtype is np.float32 else states
