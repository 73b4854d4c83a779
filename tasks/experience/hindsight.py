"""Hindsight experience replay: Andrychowicz et al. (2017), arXiv:1707.01495.

Some of the transitions that are drawn get another goal, which their episode achieved: after one of its later steps
("future"), its last step ("final") or any step ("episode"). Rewards are those of the environment for this goal, and so
are ends, if they depend on goals. A return of several steps has one goal.

Goals are drawn while sampling, from a counter-based stream, so the buffer keeps what happened. Of a running episode,
the steps so far count, and of an overwritten one those that are left.

Notation: P members, N environments, B rows of a batch, G numbers in a goal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...spaces import Dimension, categorical, real
from ..envs import Goals
from ..rng import streams
from ..rng.draws import Draws
from .replay_buffer import Index, Relabel, ReplayBuffer, RingForm

STRATEGIES = ("future", "final", "episode")
RUNNING = np.iinfo(np.int64).max  # end of an episode that has not ended yet


def relabel_space() -> dict[str, Dimension]:
    """Return the hyperparameters of relabelling.

    `relabel_ratio` is the probability of another goal. The paper's k goals for each transition make it k / (k + 1).
    """
    return {
        "relabel": categorical("none", *STRATEGIES, default="none", structural=True, search=False, silent=True),
        "relabel_ratio": real(0.5, 0.9, default=0.8, accept=(0.0, 1.0), when={"relabel": STRATEGIES}),
    }


class Relabelling(NamedTuple):
    """Rule by which drawn transitions get another goal.

    Attributes:
        goals: goals of the environment.
        strategy: one of `STRATEGIES`.
        ratio: probability of another goal, (P, 1).
        keys: random streams of the members, (P,).
        batch_size: B.
    """

    goals: Goals
    strategy: str
    ratio: Tensor
    keys: streams.Bits
    batch_size: int


class HindsightReplay(ReplayBuffer):
    """A replay buffer that gives some of the drawn transitions another goal."""

    scratch: ClassVar[tuple[str, ...]] = (
        *ReplayBuffer.scratch,
        "_begins",
        "_ends",
        "_begun",
    )  # functions of the transitions

    def __init__(self, form: RingForm, relabelling: Relabelling, device: torch.device | str = "cpu"):
        """Allocate the ring.

        Args:
            form: form of the ring.
            relabelling: rule of other goals.
            device: device of batches.
        """
        super().__init__(form, device)
        goals, strategy, ratio, keys, batch_size = relabelling
        self.goals, self.strategy, self.ratio = goals, strategy, ratio.cpu().numpy()
        self.relabel_draws = Draws(keys, (2, batch_size))
        begins = [self.columns[name] for name in ("obs", "next_obs")]
        self._desired = [_within(columns, goals.desired) for columns in begins]
        self._achieved = _within(begins[1], goals.achieved)
        shape = (self.members, self.slots, self.num_envs)
        self._begins = np.zeros(shape, np.int64)  # number of the first and the last step of a transition's episode
        self._ends = np.full(shape, RUNNING)
        self._begun = np.zeros((self.members, self.num_envs), np.int64)  # first steps of the running episodes

    def add(self, **values: NDArray[Any]) -> None:
        slot = self.steps % self.slots
        super().add(**values)
        self._begins[:, slot], self._ends[:, slot] = self._begun, RUNNING
        self._end(values["terminated"] | values["truncated"])

    def _end(self, ended: NDArray[np.bool_]) -> None:
        """Note that episodes (P, N) ended with the newest step."""
        for p, n in zip(*np.nonzero(ended), strict=True):
            first = max(self._begun[p, n], self.steps - self.slots)
            self._ends[p, np.arange(first, self.steps) % self.slots, n] = self.steps - 1
            self._begun[p, n] = self.steps

    def truncate_all(self) -> None:
        super().truncate_all()
        self._end(np.ones((self.members, self.num_envs), np.bool_))

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        super().load_member(member, tree)
        steps = np.arange(max(0, self.steps - self.slots), self.steps)
        slots, ends = steps % self.slots, [self.columns[name] for name in ("terminated", "truncated")]
        ended = self.numbers[member, slots][..., ends].any(-1)  # (steps, N)
        last = np.where(ended, steps[:, None], RUNNING)
        self._ends[member, slots] = np.minimum.accumulate(last[::-1])[::-1]
        after = np.maximum.accumulate(np.where(ended, steps[:, None] + 1, 0))
        self._begins[member, slots] = np.concatenate([np.zeros_like(after[:1]), after[:-1]])
        self._begun[member] = after[-1] if len(after) else 0

    def relabelling(self, rows: Index, number: int) -> Relabel:
        """Return a function that gives transitions the goals of a draw.

        Args:
            rows: first transitions of the returns, (P, B).
            number: number of the draw.
        """
        chance, place = self.relabel_draws(number).swapaxes(0, 1)
        chosen = chance < self.ratio
        slot, env, newest = rows // self.num_envs, rows % self.num_envs, self.steps - 1
        index = np.arange(self.members)[:, None], slot, env
        step = newest - (newest - slot) % self.slots
        last = np.minimum(self._ends[index], newest)
        first = {"future": step, "final": last, "episode": np.maximum(self._begins[index], self.steps - self.size)}[
            self.strategy
        ]
        source = first + (place * (last - first + 1)).astype(np.int64)
        goals = self.numbers[index[0], source % self.slots, env][..., self._achieved]  # (P, B, G)

        def relabel(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
            for member, picked in enumerate(chosen):
                self._give(goals[member, picked], numbers[member], picked)
            return numbers

        return relabel

    def _give(self, goals: NDArray[np.float32], numbers: NDArray[np.float32], picked: NDArray[np.bool_]) -> None:
        """Give goals to the picked transitions of one member.

        An episode that ended at its own goal is cut off there, if the new goal does not end it.
        """
        if not len(goals):
            return
        reward, terminated, truncated = (self.columns[name] for name in ("reward", "terminated", "truncated"))
        changed = numbers[picked]
        achieved = changed[:, self._achieved]
        for columns in self._desired:
            changed[:, columns] = goals
        changed[:, reward] = self.goals.reward(achieved, goals)
        if self.goals.terminated is not None:
            ended = np.maximum(changed[:, terminated], changed[:, truncated])
            changed[:, terminated] = self.goals.terminated(achieved, goals)
            changed[:, truncated] = ended * (1 - changed[:, terminated])
        numbers[picked] = changed


def _within(columns: int | slice, part: slice) -> slice:
    """Return the columns of a part of an observation."""
    assert isinstance(columns, slice)
    return slice(columns.start + part.start, columns.start + part.stop)
