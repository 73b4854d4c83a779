"""Replay buffer: a ring of the last transitions of P members.

A transition stores the observation that really followed (next_obs), and separates termination from truncation, so it
never leads into another episode. Each step writes one slot of the ring, with N transitions.

Notation: P members, N environments, B batch. A row is a slot and an environment in it: row = slot * N + environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoint.chunks import Chunked
from ..checkpoint.state import Tree
from ..compiled.loading import kernels
from ..errors import StateMismatch
from ..rng import streams
from ..rng.draws import Draws

PARTS = ("obs", "next_obs", "action", "reward", "terminated", "truncated")  # of a transition, as kernels take them
PRESENT = "present"  # field that is 0 where an agent was absent, so that its row is never drawn
EXACT_INTEGERS = 1 << 24  # integers up to this are kept exactly in float32
Index = NDArray[np.int64]
Relabel = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # of transitions (P, B, numbers in each), in place


class Field(NamedTuple):
    """An entry of a transition.

    Bytes stay bytes, all other types become float32.
    """

    shape: tuple[int, ...]
    type: torch.dtype = torch.float32


def transition_fields(obs: Field, action: Field) -> dict[str, Field]:
    """Return the fields of (s, a, r, s'), by name."""
    number = Field(())
    return {"obs": obs, "next_obs": obs, "action": action, "reward": number, "terminated": number, "truncated": number}


class RingForm(NamedTuple):
    """Form of a replay buffer.

    Attributes:
        members: P.
        capacity: number of transitions, rounded down to whole steps.
        num_envs: N.
        fields: fields of a transition, by name.
    """

    members: int
    capacity: int
    num_envs: int
    fields: Mapping[str, Field]


class ReplayBuffer:
    """The ring of transitions.

    All members write to the same slot, since they are always at the same step.

    Attributes:
        slots: number of steps that the ring holds.
        steps: number of steps ever written.
        start: number of the first step that counts, since `clear` drops those before.
        numbers: (P, slots, N, numbers in a transition).
        images: fields of bytes, each (P, slots, N, ...).
    """

    scratch: ClassVar[tuple[str, ...]] = ("_digests", "_checked_at")

    def __init__(self, form: RingForm, device: torch.device | str = "cpu"):
        """Allocate the ring in RAM.

        Args:
            form: form of the ring.
            device: device of batches.

        Raises:
            ValueError: the capacity is below one step.
        """
        members, capacity, num_envs, fields = form
        if capacity < num_envs:
            raise ValueError(
                f"a replay buffer must hold a step of its {num_envs} environments, but has room for {capacity}"
            )
        self.fields, self.members, self.num_envs, self.device = fields, members, num_envs, torch.device(device)
        self.slots = capacity // num_envs
        self.rows, self.steps, self.start = self.slots * num_envs, 0, 0
        shape = (members, self.slots, num_envs)
        self.columns: dict[str, int | slice] = {}  # where a field is among the numbers of a transition
        width = 0
        for name, field in self.fields.items():
            if field.type != torch.uint8:
                end = width + math.prod(field.shape)
                self.columns[name] = slice(width, end) if field.shape else width
                width = end
        self._first = self.rows * np.arange(members)[:, None]  # offset of each member's rows among the rows of all
        self.numbers = np.zeros((*shape, width), np.float32)
        self.images = {
            name: np.zeros((*shape, *field.shape), np.uint8)
            for name, field in self.fields.items()
            if field.type == torch.uint8
        }
        # Digests of each member's chunks, by table, and `steps` when `member_state` last saw which of them still hold.
        self._digests: list[dict[str, list[str | None]]] = [{name: [] for name in self._tables} for _ in range(members)]
        self._checked_at = [0] * members

    @property
    def size(self) -> int:
        """Number of slots that hold transitions."""
        return min(self.steps - self.start, self.slots)

    def add(self, **values: NDArray[Any]) -> None:
        """Write one step's transitions over the oldest ones.

        Every field is (P, N, ...).
        """
        slot = self.steps % self.slots
        rows = self.numbers[:, slot]
        for name, columns in self.columns.items():
            value = values[name]
            rows[..., columns] = value if value.ndim <= 3 else value.reshape(self.members, self.num_envs, -1)
        for name, image in self.images.items():
            image[:, slot] = values[name]
        self.steps += 1

    def truncate_all(self) -> None:
        """Mark the newest transitions as truncated, if there are any."""
        if not self.steps:
            return
        self.numbers[:, self.newest(), :, self.columns["truncated"]] = 1
        self._checked_at = [min(at, self.steps - 1) for at in self._checked_at]  # the newest ones changed

    def clear(self) -> None:
        """Delete all transitions."""
        self.start = self.steps

    def newest(self, back: int = 0) -> int:
        """Return the slot that was written `back` steps before the last one."""
        return (self.steps - 1 - back) % self.slots

    def row(self, age: Index) -> Index:
        """Return rows by their age; 0 is the oldest."""
        oldest = (self.steps - self.size) % self.slots * self.num_envs
        rows: Index = (age + oldest) % self.rows
        return rows

    def batch(self, rows: Index, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return fields of rows (P, B), each (P, B, ...) and contiguous."""
        index = rows + self._first
        return self._fields(index, self._gather(index), names)

    def _gather(self, index: Index) -> NDArray[np.float32]:
        """Return the numbers of transitions, (P, B, numbers in each).

        The index (P, B) counts the rows of all members.
        """
        numbers: NDArray[np.float32] = self.numbers.reshape(-1, self.numbers.shape[-1]).take(index, 0)
        return numbers

    def _fields(self, index: Index, numbers: NDArray[np.float32], names: tuple[str, ...]) -> dict[str, Tensor]:
        picked: dict[str, Tensor] = {}
        for name in names:
            shape, dtype = self.fields[name]
            if name in self.images:
                image = torch.from_numpy(self.images[name]).flatten(0, 2)
                picked[name] = image[torch.from_numpy(index)].to(self.device)
                continue
            value = torch.from_numpy(np.ascontiguousarray(numbers[..., self.columns[name]]))
            value = value.to(self.device, dtype)
            picked[name] = value if len(shape) < 2 else value.unflatten(-1, shape)
        return picked

    def present(self, whole: int) -> list[Index] | None:
        """Return the ages of each member's rows that count.

        Only the oldest `whole` rows are considered; a member without any gets the newest of them. None means that all
        rows count.
        """
        if PRESENT not in self.images:
            return None
        counted = self.images[PRESENT].reshape(self.members, self.rows)[:, self.row(np.arange(whole))] > 0
        return [np.flatnonzero(rows) if rows.any() else np.array([whole - 1]) for rows in counted]

    def relabelling(self, rows: Index, number: int) -> Relabel | None:
        """Return a function that changes the transitions of a draw, or None.

        Rows are (P, B), and `number` is that of the draw.
        """
        return None

    def returns(self, rows: Index, gamma: Tensor, n_step: int, relabel: Relabel | None = None) -> dict[str, Tensor]:
        """Return the n-step batch of the transitions in rows (P, B).

        The batch has obs, action, reward, discount and next_obs:

            reward = Σ_{k<m} γᵏ rₜ₊ₖ,   discount = γᵐ (1 - terminatedₜ₊ₘ₋₁),   next_obs = s'ₜ₊ₘ₋₁

        Here m = n_step, or less if the episode ended before: Sutton and Barto (2018), eq. 7.1. A truncation ends the
        sum, but the bootstrap stays. gamma is (P, 1), on the CPU, and `relabel` changes the transitions first. NumPy
        does the arithmetic, since torch takes several times as long for small arrays.
        """
        factor, index = gamma.numpy(), rows + self._first
        reward, terminated, truncated = (self.columns[name] for name in ("reward", "terminated", "truncated"))
        gather = self._gather if relabel is None else lambda index: relabel(self._gather(index))
        numbers = last = gather(index)
        total, bootstrap = numbers[..., reward], 1 - numbers[..., terminated]
        discount, following = factor, index
        if n_step > 1:
            alive = np.ones_like(total)
            discount, following = np.broadcast_to(factor, alive.shape), index.copy()
        for k in range(1, n_step):
            alive = alive * (bootstrap * (1 - last[..., truncated]))
            running = alive > 0
            if not running.any():
                break
            ahead = (rows + k * self.num_envs) % self.rows + self._first
            last = gather(ahead)
            if PRESENT in self.images:  # steps at which the agent waits are passed over
                running &= self.images[PRESENT].reshape(-1)[ahead] > 0
            total = total + discount * alive * last[..., reward]
            discount = np.where(running, discount * factor, discount)
            bootstrap = np.where(running, 1 - last[..., terminated], bootstrap)
            following = np.where(running, ahead, following)
        ends = {"reward": total, "discount": discount * bootstrap}
        return {
            **self._fields(index, numbers, ("obs", "action")),
            **self._fields(following, numbers if n_step == 1 else gather(following), ("next_obs",)),
            **{name: torch.from_numpy(np.ascontiguousarray(x)).to(self.device) for name, x in ends.items()},
        }

    def member_state(self, member: int) -> Tree:
        """Return one member's state, with views of the ring.

        Chunks that were written to since the last call lose their digests, until `pack` fills them in. A checkpoint
        therefore copies and hashes these alone.
        """
        first = max(self._checked_at[member], self.steps - self.slots)
        changed = np.arange(first, self.steps) % self.slots
        self._checked_at[member] = self.steps
        tree: Tree = {"steps": self.steps, "start": self.start}
        for name, table in self._tables.items():
            leaf = Chunked(torch.from_numpy(table[member]), self._digests[member][name], min(self.steps, self.slots))
            leaf.changed(changed)
            tree[name] = leaf
        return tree

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        at = (tree["steps"], tree["start"])
        if member > 0 and at != (self.steps, self.start):
            raise StateMismatch(f"replay buffers must be at the same step, but got {at} and {(self.steps, self.start)}")
        self.steps, self.start = at
        for name, table in self._tables.items():
            leaf = tree[name]
            table[member] = (leaf.tensor if isinstance(leaf, Chunked) else leaf).numpy()
            self._digests[member][name] = list(leaf.digests) if isinstance(leaf, Chunked) else []
        self._checked_at[member] = self.steps

    @property
    def _tables(self) -> dict[str, NDArray[Any]]:
        return {"numbers": self.numbers, **self.images}


class CompiledReplayBuffer(ReplayBuffer):
    """A replay buffer without images, whose transitions kernels store and gather.

    Attributes:
        table: numbers of transitions (P, rows, ...), and columns of their fields, see `compiled.off_policy`.
    """

    scratch: ClassVar[tuple[str, ...]] = (*ReplayBuffer.scratch, "_run", "table", "_sizes")

    def __init__(self, run: ModuleType, form: RingForm, device: torch.device | str = "cpu"):
        """Allocate the ring, see `ReplayBuffer`, for the kernels `run`."""
        super().__init__(form, device)
        self._run = run
        spans = [range(self.numbers.shape[-1])[self.columns[name]] for name in PARTS]
        columns = np.array([(x, x + 1) if isinstance(x, int) else (x.start, x.stop) for x in spans])
        self.table: tuple[NDArray[np.float32], Index] = (self.numbers.reshape(self.members, self.rows, -1), columns)
        self._sizes = (columns[:3, 1] - columns[:3, 0]).tolist()

    def add(self, **values: NDArray[Any]) -> None:
        obs, following, reward = (np.asarray(values[name], np.float32) for name in ("obs", "next_obs", "reward"))
        ends = (np.asarray(values[name], np.bool_) for name in ("terminated", "truncated"))
        action = np.asarray(values["action"], np.float32).reshape(self.members, self.num_envs, -1)
        step = (obs, following, action, reward, *ends)
        self._run.store(self.numbers, self.steps % self.slots, self.table[1], *step)
        self.steps += 1

    def returns(self, rows: Index, gamma: Tensor, n_step: int, relabel: Relabel | None = None) -> dict[str, Tensor]:
        obs, next_obs, action = (np.empty((*rows.shape, size), np.float32) for size in self._sizes)
        reward, discount = np.empty(rows.shape, np.float32), np.empty(rows.shape, np.float32)
        numbers, columns = self.table
        drawn = (numbers, rows, gamma.numpy(), n_step, self.num_envs, columns)
        self._run.n_step_batch(*drawn, obs, next_obs, action, reward, discount)
        batch = {"obs": obs, "action": action, "next_obs": next_obs, "reward": reward, "discount": discount}
        return {name: self._tensor(name, x) for name, x in batch.items()}

    def _tensor(self, name: str, numbers: NDArray[np.float32]) -> Tensor:
        """Return a field's numbers in its own shape and type.

        They are (P, B, n), or (P, B) if there is one.
        """
        value = torch.from_numpy(numbers)
        if name == "action":
            shape, dtype = self.fields[name]
            value = value.view(*numbers.shape[:2], *shape).to(dtype)
        return value if self.device.type == "cpu" else value.to(self.device)


def replay_buffer(form: RingForm, device: torch.device | str = "cpu") -> ReplayBuffer:
    """Return a `ReplayBuffer`, with kernels where they cover its fields."""
    covered = {*form.fields} == {*PARTS} and all(field.type != torch.uint8 for field in form.fields.values())
    run = kernels() if covered else None
    return ReplayBuffer(form, device) if run is None else CompiledReplayBuffer(run, form, device)


class Sampler:
    """Source of batches from a replay buffer."""

    def __init__(self, replay: ReplayBuffer, keys: streams.Bits, batch_size: int, n_step: int):
        """Set up the random streams.

        Args:
            replay: the transitions.
            keys: random streams of the members, (P,).
            batch_size: B.
            n_step: steps of a return.
        """
        self.replay, self.n_step = replay, n_step
        self.draws = Draws(keys, (batch_size,))

    def rows(self, number: int) -> Index:
        """Return the rows (P, B) of the draw with this number."""
        raise NotImplementedError

    def draw(self, number: int, gamma: Tensor, env_steps: int) -> tuple[Index, dict[str, Tensor]]:
        """Return the rows and the batch of the draw with this number.

        Rows are (P, B), the batch's tensors (P, B, ...), and gamma is (P, 1).
        """
        rows = self.rows(number)
        relabel, weights = self.replay.relabelling(rows, number), self.weights(rows, env_steps)
        batch = self.replay.returns(rows, gamma, self.n_step, relabel)
        return rows, batch if weights is None else {**batch, "weight": weights}

    def weights(self, rows: Index, env_steps: int) -> Tensor | None:
        """Return the weights (P, B) of drawn rows; None if equal."""
        return None

    def update(self, rows: Index, errors: Tensor) -> None:
        """Learn from the TD errors (P, B) of drawn rows, if needed."""


class UniformSampler(Sampler):
    """Sampler of transitions with equal probability, with replacement.

    Only transitions with at least n_step - 1 successors are drawn, and none of absent agents.
    """

    def rows(self, number: int) -> Index:
        whole, draws = (self.replay.size - self.n_step + 1) * self.replay.num_envs, self.draws(number)
        if (ages := self.replay.present(whole)) is None:
            return self.replay.row((draws * whole).astype(np.int64))
        picked = [
            ages_of[(numbers * len(ages_of)).astype(np.int64)] for ages_of, numbers in zip(ages, draws, strict=True)
        ]
        return self.replay.row(np.stack(picked))
