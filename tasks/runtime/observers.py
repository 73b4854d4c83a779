"""Observers of training, and rules that end it early.

    listeners = Observers().on(show, priority=1).on(plot, every=10)
    task.fit(1000, context=listeners, until=NoImprovement("episode_return", epochs=20))

A rule is a function of the metrics so far. A task that was interrupted, or that trains in a cohort, therefore ends at
the same epoch, and another call of `fit` with the same rule changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from ...spaces.values import whole_number
from ..checkpoint.storage import Metrics

History = Sequence[tuple[int, Metrics]]
Until = Callable[[History], bool]


class Trainable(Protocol):
    """A task in training, as its observers see it.

    Attributes:
        uid: uid of the task.
    """

    uid: str

    @property
    def epochs(self) -> int:
        """Epochs done so far."""

    @property
    def objective(self) -> str:
        """Name of the quantity that `evaluate` returns."""

    @property
    def history(self) -> list[tuple[int, Metrics]]:
        """(epoch, metrics) of every epoch done."""

    def evaluate(self) -> float:
        """Return the objective, measured on data that training never uses."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the future depends on."""


@dataclass(frozen=True)
class EpochEvent:
    """The end of a member's epoch, for listeners.

    Attributes:
        task: the task.
        epoch: number of the epoch, from 1.
        metrics: metrics of the epoch.
        context: mapping that was given to `fit`; empty without one.
    """

    task: Trainable
    epoch: int
    metrics: Metrics
    context: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[EpochEvent], None]
Context = Listener | Mapping[str, Any]


def check_listener(listener: Any, name: str, subject: str) -> None:
    """Raise TypeError unless a listener is callable or None."""
    if listener is not None and not callable(listener):
        raise TypeError(
            f"{subject}: {name} must be a function, of an EpochEvent (until: of the history), but got "
            f"{type(listener).__name__} {str(listener)[:40]!r}"
        )


class Observers:
    """Several listeners as one `context`.

    Each is called every few epochs, in order of priority.
    """

    def __init__(self) -> None:
        self._listeners: list[tuple[int, int, Listener]] = []

    def on(self, listener: Listener, *, every: int = 1, priority: int = 0) -> Self:
        """Add a listener.

        Args:
            listener: function called with an EpochEvent.
            every: epochs between two calls.
            priority: listeners with higher priority are called first; of equal ones the first added.

        Returns:
            This object, so that calls can be chained.

        Raises:
            ValueError: `every` is below 1 or not an integer.
        """
        epochs = whole_number(every)
        if epochs is None or epochs < 1:
            raise ValueError(f"Observers: every must be a number of epochs of at least 1, but got {every!r}")
        self._listeners = sorted([*self._listeners, (priority, epochs, listener)], key=lambda row: -row[0])
        return self

    def __call__(self, event: EpochEvent) -> None:
        for _, every, listener in self._listeners:
            if event.epoch % every == 0:
                listener(event)


@dataclass(frozen=True)
class NoImprovement:
    """Rule that ends training once a metric stops improving.

    Attributes:
        metric: name of the metric. Epochs without it count as epochs without improvement, from the first that has it.
        epochs: number of epochs without improvement after which training ends.
        min_delta: the metric improves only if it gets better by more than this.
        minimize: whether lower is better.
    """

    metric: str
    epochs: int
    min_delta: float = 0.0
    minimize: bool = False

    def __post_init__(self) -> None:
        if (whole_number(self.epochs) or 0) < 1:
            raise ValueError(f"NoImprovement: epochs must be an integer of at least 1, but got {self.epochs!r}")
        if not 0 <= self.min_delta < math.inf:
            raise ValueError(f"NoImprovement: min_delta must be a number of at least 0, but got {self.min_delta!r}")

    def __call__(self, history: History) -> bool:
        best, last = -math.inf, None
        for epoch, metrics in history:
            value = metrics.get(self.metric, math.nan) * (-1 if self.minimize else 1)
            if value > best + (self.min_delta if last is not None else 0.0):
                best, last = value, epoch
        return last is not None and history[-1][0] - last >= self.epochs
