"""Prioritized replay, proportional variant: Schaul et al. (2016), arXiv:1511.05952.

The nodes of the sum tree have FAN children instead of two. A buffer of a million transitions is then four levels deep,
and all draws of all members descend together. A node is always computed from its children, never updated by a
difference. The tree is therefore a function of its leaves, and only the leaves are state.

Notation: P members, B batch; rows as in the replay buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...spaces import Space, categorical, integer, log_real, real
from ..checkpoint.state import Tree
from ..compiled.loading import kernels
from ..rng import streams
from .hindsight import relabel_space
from .replay_buffer import Index, ReplayBuffer, Sampler

FAN = 32
Sums = NDArray[np.float64]


class SumTree:
    """P sum trees with the same number of leaves.

    Attributes:
        levels: the levels from the leaves to the roots, each (P, nodes, FAN): the children of each node above.
    """

    def __init__(self, members: int, leaves: int):
        self.leaves = leaves
        self.levels: list[Sums] = []
        nodes = leaves
        while nodes > 1 or not self.levels:
            nodes = -(-nodes // FAN)
            self.levels.append(np.zeros((members, nodes, FAN)))
        self.member = np.arange(members)[:, None]

    @property
    def total(self) -> Sums:
        """Sum of all leaves, (P, 1)."""
        total: Sums = self.levels[-1].sum(-1)
        return total

    def __getitem__(self, leaf: Index) -> Sums:
        """Return the values of leaves (P, B)."""
        values: Sums = self.levels[0][self.member, leaf // FAN, leaf % FAN]
        return values

    def set(self, leaf: Index, values: Sums) -> None:
        """Set leaves (P, B) to values.

        If a leaf occurs more than once, it takes the last of its values.
        """
        index = leaf
        for level in self.levels:
            node, child = index // FAN, index % FAN
            level[self.member, node, child] = values
            index, values = node, level[self.member, node].sum(-1)

    def find(self, target: Sums) -> Index:
        """Return the leaves where running sums first exceed the targets.

        Leaves and targets are (P, B).
        """
        index = np.zeros(target.shape, np.int64)
        for level in reversed(self.levels):
            running = level[self.member, index].cumsum(-1)
            target = np.minimum(target, np.nextafter(running[..., -1], 0))  # rounding must not lead past the last child
            child = (running <= target[..., None]).sum(-1)
            before = np.take_along_axis(running, np.maximum(child - 1, 0)[..., None], -1)[..., 0]
            target = target - np.where(child > 0, before, 0.0)
            index = index * FAN + child
        return index

    def member_leaves(self, member: int) -> Sums:
        """Return one member's leaves; a view where the array is contiguous."""
        return self.levels[0][member].reshape(-1)[: self.leaves]

    def clear(self) -> None:
        """Set all leaves to zero."""
        for level in self.levels:
            level[:] = 0

    def load_leaves(self, member: int, leaves: Sums) -> None:
        """Load one member's leaves."""
        self.levels[0][member].reshape(-1)[: self.leaves] = leaves
        for below, above in zip(self.levels, self.levels[1:], strict=False):
            above[member].reshape(-1)[: below.shape[1]] = below[member].sum(-1)


class CompiledSumTree(SumTree):
    """Sum trees that kernels compute."""

    scratch = ("_run",)

    def __init__(self, run: ModuleType, members: int, leaves: int):
        super().__init__(members, leaves)
        self._run = run

    def set(self, leaf: Index, values: Sums) -> None:
        index, values = leaf.copy(), values.copy()  # kernels overwrite them
        for level in self.levels:
            self._run.set_children(level, index, values)

    def find(self, target: Sums) -> Index:
        index, target = np.zeros(target.shape, np.int64), target.copy()  # kernels overwrite it
        for level in reversed(self.levels):
            self._run.find_children(level, index, target)
        return index


def sum_tree(members: int, leaves: int) -> SumTree:
    """Return sum trees, with kernels if there are any; see `SumTree`."""
    return SumTree(members, leaves) if (run := kernels()) is None else CompiledSumTree(run, members, leaves)


def replay_space() -> Space:
    """Return the hyperparameters for sampling transitions.

    Transitions are drawn uniformly ("uniform"), or in proportion to their priority to the power of `alpha`
    ("prioritized"). Some get another goal with `relabel`, see `hindsight`.
    """
    prioritized = {"name": "prioritized"}
    return Space(
        name=categorical("uniform", "prioritized", default="uniform", structural=True),
        alpha=real(0.3, 0.9, default=0.6, accept=(0.0, 10.0), when=prioritized),
        beta=real(0.2, 1.0, default=0.4, accept=(0.0, 1.0), when=prioritized),
        beta_horizon=integer(1, 10**12, default=100_000, search=False, when=prioritized),
        eps=log_real(1e-8, 1.0, default=1e-6, search=False, when=prioritized),
        **relabel_space(),
    )


class PrioritizedSampler(Sampler):
    """Sampler of transitions with probability p^alpha / Σ p^alpha.

    p = |δ| + eps, and new transitions get the largest p so far. A transition can be drawn once its n-step return is
    complete. Draws are stratified: the i-th comes from the i-th of B equal parts of the probability.
    """

    def __init__(self, replay: ReplayBuffer, keys: streams.Bits, batch_size: int, n_step: int, hp: SimpleNamespace):
        """Build an empty tree over the buffer's rows.

        Args:
            replay: the transitions.
            keys: random streams of the members, (P,).
            batch_size: B.
            n_step: steps of a return.
            hp: values of `replay_space`.
        """
        super().__init__(replay, keys, batch_size, n_step)
        self.hp = hp
        self.strata = np.arange(batch_size)
        self.tree = sum_tree(len(keys), replay.rows)
        self.largest = np.ones((len(keys), 1))  # of p^alpha
        self.entered = self.start = 0  # the buffer's `steps` and `start` when the tree last looked

    def enter(self) -> None:
        """Enter the transitions that were stored since the last call.

        They get the largest priority, or none while their n-step return is incomplete.
        """
        replay = self.replay
        if replay.start != self.start:
            self.tree.clear()
            self.start = replay.start
        oldest = replay.steps - replay.size
        if self.n_step > 1:
            self._set(np.arange(max(self.entered, oldest), replay.steps), np.zeros_like(self.largest))
        unfinished = self.n_step - 1
        self._set(np.arange(max(self.entered - unfinished, oldest), replay.steps - unfinished), self.largest)
        self.entered = replay.steps

    def _set(self, steps: Index, values: Sums) -> None:
        """Set all transitions of these steps to their member's value, (P, 1)."""
        num_envs = self.replay.num_envs
        rows = (steps[:, None] % self.replay.slots * num_envs + np.arange(num_envs)).reshape(1, -1)
        shape = (len(values), rows.size)
        if rows.size:
            self.tree.set(np.broadcast_to(rows, shape), np.broadcast_to(values, shape))

    def rows(self, number: int) -> Index:
        self.enter()
        return self.tree.find((self.strata + self.draws(number)) / len(self.strata) * self.tree.total)

    def weights(self, rows: Index, env_steps: int) -> Tensor:
        """Return the importance weights (P, B), section 3.4.

        They are scaled so that the largest of a batch is 1. beta grows linearly to 1 over `beta_horizon` environment
        steps.
        """
        progress = (env_steps / self.hp.beta_horizon.double()).clamp(max=1.0)
        beta = self.hp.beta + (1 - self.hp.beta) * progress
        priority = torch.from_numpy(self.tree[rows]).to(beta.device)
        smallest = priority.amin(1, keepdim=True)
        return (beta * (smallest / priority).log()).exp().float()

    def update(self, rows: Index, errors: Tensor) -> None:
        """Set the priorities of drawn transitions from their TD errors (P, B)."""
        priority = (self.hp.alpha * (errors.abs().double() + self.hp.eps).log()).exp().cpu().numpy()
        self.tree.set(rows, priority)
        self.largest = np.maximum(self.largest, priority.max(1, keepdims=True))

    def member_state(self, member: int) -> Tree:
        leaves = torch.from_numpy(self.tree.member_leaves(member).copy())
        counters = {"largest": float(self.largest[member, 0]), "entered": self.entered, "start": self.start}
        return {"priorities": leaves, **counters}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.tree.load_leaves(member, tree["priorities"].numpy())
        self.largest[member] = tree["largest"]
        self.entered, self.start = tree["entered"], tree["start"]
