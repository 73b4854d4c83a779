"""What a study is, as the JSON that its row holds: all that its trials depend on, and how many there are to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...spaces import Space, flatten, unflatten
from ...spaces.choices import Fixed
from ...tasks.checkpoint.retention import snapshots
from ..errors import StoreError

if TYPE_CHECKING:
    from ...tasks.checkpoint.storage import Storage
    from ...tasks.task import Task

VERSION = 1
SCHEDULERS = ("halving", "asha", "hyperband", "none", "pbt")
BASE = 3  # of every three trials, one is carried on to three times the epochs


class BadConfig(ValueError):
    """What was asked of a study means nothing."""


@dataclass(frozen=True)
class Config:
    """The configuration of a study.

    Attributes:
        task, task_version: the algorithm.
        env: the environment's JSON.
        seed: of every trial's training and of the suggestions.
        space: the space that is searched, as prior texts by dotted name, in order.
        fixed: hyperparameters, by dotted name, that are not.
        epochs: [low, high, base]: rungs at low, low * base, ... and high; with base 1 at low, 2 low, ... and high.
        trials: how many there were to be when the study was made, and after each time it was extended.
        generation: how many trials are suggested at once and halved among each other.
        cohort: how many trials in a row share their structure, so that they can train as one cohort.
        sampler: the name of the sampler.
        scheduler: the name of the scheduler.
        options: the scheduler's own; `seeds` and `aggregate`, see `replicas`; `snapshots`, see `Task`;
            `warm_start`, the digest of a stored policy that every trial starts from.
    """

    task: str
    task_version: int
    env: Mapping[str, Any]
    seed: int
    space: Mapping[str, Any]
    fixed: Mapping[str, Any]
    epochs: Sequence[int]
    trials: Sequence[int]
    generation: int = 8
    cohort: int = 4
    sampler: str = "tpe"
    scheduler: str = "halving"
    options: Mapping[str, Any] = field(default_factory=dict)
    direction: str = "maximize"
    version: int = field(default=VERSION)

    def to_json(self) -> dict[str, Any]:
        """The JSON that a study's row holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any], name: str) -> Config:
        """The configuration in a study's row; StoreError if this Rekindle cannot have written it."""
        version = form.get("version") if isinstance(form, Mapping) else None
        if version != VERSION:
            raise StoreError(
                f"study {name!r} must have a configuration of version {VERSION}, but got "
                f"{str(version)[:40]}; use the Rekindle that made it, or another name"
            )
        if wrong := what_is_wrong(form):
            raise StoreError(f"the configuration of study {name!r} is not one: {wrong}; restore it from a copy")
        try:
            return cls(**form)
        except TypeError as error:
            raise StoreError(f"the configuration of study {name!r} is not one: {error}") from None

    @cached_property
    def rungs(self) -> tuple[int, ...]:
        """Epochs in all at the end of each rung, rising."""
        low, high, base = self.epochs
        rungs = [low]
        while rungs[-1] < high:
            rungs.append(min(rungs[-1] * base if base > 1 else rungs[-1] + low, high))
        return tuple(rungs)

    @cached_property
    def brackets(self) -> tuple[range, ...]:
        """The trials, by number, that are suggested together and halved among each other.

        A study of 20 trials that is extended to 32 keeps its last bracket of four.
        """
        brackets, start = [], 0
        for total in self.trials:
            brackets += [range(n, min(n + self.generation, total)) for n in range(start, total, self.generation)]
            start = total
        return tuple(brackets)

    @property
    def open(self) -> list[str]:
        """The dotted names of what is really searched."""
        return [name for name, dimension in self.searched.flat().items() if not isinstance(dimension, Fixed)]

    @cached_property
    def searched(self) -> Space:
        """The space that suggestions come from."""
        return Space.from_priors(self.space)

    def make_task(
        self,
        algorithm: type[Task],
        values: Mapping[str, Any],
        storage: Storage | None,
        start: str | None = None,
        seed: int | None = None,
    ) -> Task:
        """The task of a trial with these hyperparameters, initialized.

        `start` is the state that a branch takes; `seed` is a replicate's, in the place of the study's.
        """
        seed = self.seed if seed is None else seed
        task = algorithm(self.env, seed=seed, storage=storage, snapshots=self.options.get("snapshots"))
        return task.init(start=start or self.options.get("warm_start"), **unflatten(flatten(values)))

    def probe(self, algorithm: type[Task]) -> None:
        """Makes environments and networks once, and raises what keeps this machine from training the study."""
        replace(self, options={}).make_task(algorithm, self.fixed, None).probe()


def choose(what: str, name: str, known: Sequence[str]) -> str:
    """The name, if it is one of those known; BadConfig names the nearest one otherwise."""
    if name in known:
        return name
    near = get_close_matches(name, known, n=1)
    raise BadConfig(
        f"{what} must be one of {', '.join(known)}, but got {name!r}" + (f"; did you mean {near[0]}?" if near else "")
    )


def check_epochs(epochs: Sequence[int]) -> list[int]:
    """[low, high, base] of a number, of (low, high) or of all three; BadConfig if they make no rungs."""
    filled = [*epochs, *epochs] if len(epochs) == 1 else [*epochs]
    low, high, base = filled = [*filled, BASE] if len(filled) == 2 else filled
    for name, value, least in (("low", low, 1), ("high", high, low), ("base", base, 2)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadConfig(f"epochs are low:high:base with 1 <= low <= high and base >= 2, but {name} is {value!r}")
    return filled


def parse_epochs(text: str) -> list[int]:
    """[low, high, base] of ``27``, ``1:27`` or ``1:27:3``."""
    parts = text.split(":")
    if not 1 <= len(parts) <= 3 or not all(part.strip().isdecimal() for part in parts):
        raise BadConfig(f"epochs must be written high, low:high or low:high:base, such as 1:27, but got {text!r}")
    return check_epochs([int(part) for part in parts])


def check_count(name: str, value: object) -> None:
    """Raises BadConfig unless the value is a number of things."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadConfig(f"{name} must be an integer of at least 1, but got {value!r}")


MOST_GRID_POINTS = 10_000  # of one range
MANY = 10_000_000  # trials, epochs: more than anybody trains
RUNGS = 10_000
DEPTH = 16  # names within names


def _is_count(value: Any, least: int = 1, most: int = MANY) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_names(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and name.count(".") < DEPTH for name in value)


def _are_epochs(value: Any) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 3 and all(_is_count(each) for each in value)):
        return False
    low, high, base = value
    return low <= high and (base > 1 or high // low < RUNGS)


def _are_trials(value: Any) -> bool:
    counts = isinstance(value, list | tuple) and 0 < len(value) <= RUNGS and all(_is_count(each) for each in value)
    return counts and list(value) == sorted(set(value))


def _are_options(value: Any) -> bool:
    if not _are_names(value) or not isinstance(value.get("warm_start", ""), str):
        return False
    if not _is_count(value.get("grid_points", 2), 1, MOST_GRID_POINTS):
        return False
    try:
        snapshots(value.get("snapshots", "latest"))
    except ValueError:
        return False
    objectives = value.get("objectives", {"": "maximize"})
    return _are_names(objectives) and len(objectives) > 0 and set(objectives.values()) <= {"maximize", "minimize"}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) < 1000


_FORM: dict[str, Callable[[Any], bool]] = {
    "task": _is_text,
    "task_version": _is_count,
    "env": lambda value: isinstance(value, Mapping) and _is_text(value.get("id")),
    "seed": lambda value: _is_count(value, 0, 2**63 - 1),
    "space": _are_names,
    "fixed": _are_names,
    "epochs": _are_epochs,
    "trials": _are_trials,
    "generation": _is_count,
    "cohort": _is_count,
    "sampler": _is_text,
    "scheduler": _is_text,
    "options": _are_options,
    "direction": _is_text,
}


def what_is_wrong(form: Mapping[str, Any]) -> str:
    """The name and the value of what no configuration holds, or "" if there is none."""
    for name, check in _FORM.items():
        if name in form and not check(form[name]):
            return f"its {name} is {str(form[name])[:80]!r}"
    return ""
