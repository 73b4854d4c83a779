"""Functions as tasks: one call of a function is one epoch.

    @rekindle.task(space=Space(lr=log_real(1e-4, 1e-1, default=1e-2)), objective="accuracy")
    def train(hp, state, seed):
        ...
        return state, {"accuracy": accuracy}

The decorated name is a `Task` class. It is called by module and name (``package.module:train``), so any process that
can import the module trains it. Studies and tasks keep the digest of the function and of what it uses, and continue
with other code only if the user accepts it. Raise `version` to train everything anew.

Each call gets the state as data that the last call returned, in training without a stop, too. So nothing survives
between two calls but the state, and a resumed training is one that never stopped.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from ...spaces import Space
from ...spaces.arguments import at_least, fits
from ...spaces.choices import name_of
from ...spaces.custom_priors import with_defaults
from ...spaces.errors import near
from ...spaces.values import unflatten
from ..envs.gym.surroundings import Guard
from ..errors import NotData
from ..registry import define
from ..rng import streams
from ..runtime.jax_threads import one_jax_thread
from ..task import Task
from .adapted_learner import MeasuredLearner
from .data import Data, decode, encode, sizes

ARGUMENTS = ("hp", "state", "seed")
FURTHER = ("epoch", "device")  # arguments that a function gets if it names them
LARGEST = 1 << 30  # bytes of a state
Function = Callable[..., tuple[Any, Mapping[str, Any]]]


def rng(seed: int, *path: int | str) -> np.random.Generator:
    """Return NumPy's generator of the random stream with this path.

    Equal arguments give equal numbers, in every process.

    Args:
        seed: seed of the task.
        path: whatever tells streams apart, such as a purpose and the epoch.
    """
    return np.random.Generator(np.random.Philox(int(streams.key(seed, "rng", *path))))


def task(
    *,
    space: Space,
    objective: str,
    bounds: tuple[float | None, float | None] = (None, None),
    version: int = 1,
    largest: int = LARGEST,
) -> Callable[[Function], type[Task]]:
    """Make a function a task; each call trains one epoch.

    The function is called with `hp`, the hyperparameters as attributes; `state`, None at first and then what the last
    call returned; and `seed`. If it has arguments named `epoch` (1 for the first call) or `device`, it gets these, too.
    It returns the state and its metrics by name, which include the objective. See `data` for what a state may hold.
    The global generators of Python, NumPy and torch are seeded before each call, by seed and epoch.

    Args:
        space: hyperparameters; the median is the default of those that have none.
        objective: name of the metric to maximize, or NAME:minimize.
        bounds: least and greatest value that the objective can have, such as (0, 1) for an accuracy.
        version: number to raise when the function gives other results, so that everything is trained anew.
        largest: bytes that a state may have.

    Raises:
        ValueError: an argument is invalid.
        TypeError: the function does not take hyperparameters, state and seed.
    """
    name, colon, direction = objective.partition(":")
    if not name or (colon and direction not in ("maximize", "minimize")):
        raise ValueError(f"objective must be NAME, NAME:maximize or NAME:minimize, but got {objective!r}")
    if not isinstance(space, Space):
        raise ValueError(f"space must be a Space, such as Space(lr=log_real(1e-4, 1e-1, default=1e-2)), not {space!r}")

    for argument, number in (("version", version), ("largest", largest)):
        at_least("rekindle.task", argument, number, 1)
    if not isinstance(bounds, tuple | list) or len(bounds) != 2 or not all(fits(float | None, x) for x in bounds):
        raise ValueError(f"rekindle.task: bounds are two numbers or None, such as (0, 1), but got {bounds!r}")

    def decorate(function: Function) -> type[Task]:
        if not callable(function):
            raise TypeError(f"rekindle.task makes a function a task, but got {function!r}")
        further = _further(function)
        path = name_of(function)
        learner = type(
            f"{function.__name__}Learner",
            (FunctionLearner,),
            {
                "__module__": function.__module__,
                "__doc__": f"State of {path}.",
                "hyperparameters": with_defaults(space),
                "objective": name,
                "direction": direction or "maximize",
                "bounds": tuple(bounds),
                "definition": staticmethod(function),
                "further": further,
                "title": path,
                "largest": largest,
            },
        )
        content = {"name": path, "version": version, "learner": learner, "__module__": function.__module__}
        return define(type(function.__name__, (Task,), {**content, "__doc__": function.__doc__ or f"Task {path}."}))

    return decorate


class FunctionLearner(MeasuredLearner):
    """State of a function's training, as data.

    Attributes:
        further: names of further arguments that the function takes.
        largest: bytes that its state may have.
        returned: its last state and metrics; None before the first call.
    """

    parts = ("returned",)
    definition: ClassVar[Function]
    further: ClassVar[Sequence[str]]
    largest: ClassVar[int]

    def build(self) -> None:
        self.returned = Data()

    def iterate(self) -> Mapping[str, Tensor]:
        epoch, before = self.iterations + 1, decode(self.returned.tree)
        further = {"epoch": epoch, "device": str(self.device)}
        seed = streams.short(self.seeds[0])
        values = unflatten(copy.deepcopy(self.values))  # the function may change lists
        arguments = Hyperparameters.of(self.space_in(self.env), values), before and before[0], seed
        with self.seeded(epoch), one_jax_thread(), _settings_to_itself(self.title):
            try:
                returned = type(self).definition(*arguments, **{name: further[name] for name in self.further})
            except SystemExit as end:  # else the process would end without a word
                raise NotData(f"{self.form()}, but called sys.exit({end.code!r})") from end
        state, metrics = self.checked(returned)
        try:
            tree = encode((state, metrics), "the state")
        except NotData as error:  # it names the place in the pair
            raise NotData(str(error).replace("the state[0]", "the state")) from None
        self.check_size(sizes(tree), epoch)
        self.returned.tree = tree
        return {name: torch.tensor([value], dtype=torch.float64) for name, value in metrics.items()}

    @contextmanager
    def seeded(self, epoch: int) -> Iterator[None]:
        """Seed the global generators of Python, NumPy and torch, then restore them."""
        python, numpy = random.getstate(), np.random.get_state()
        random.seed(int(streams.key(self.seeds[0], "python", epoch)))
        np.random.seed(streams.seed_of(self.seeds[0], "numpy", epoch))
        try:
            with self.torch_seed("torch", epoch):
                yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)

    def form(self) -> str:
        """Return the rule for what the function returns."""
        return f"{self.title} must return its state and its metrics, such as (state, {{{self.objective!r}: 0.9}})"

    def checked(self, returned: Any) -> tuple[Any, dict[str, float]]:
        """Return a call's state and metrics.

        Raises:
            NotData: the function returned something else.
        """
        form = self.form()
        if not isinstance(returned, tuple | list) or len(returned) != 2 or not isinstance(returned[1], Mapping):
            got = f"({', '.join(_kind(x) for x in returned)})" if isinstance(returned, tuple) else _kind(returned)
            raise NotData(f"{form}, but returned {got}")
        state, metrics = returned
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            try:
                numbers[name] = float(value)
            except (TypeError, ValueError, RuntimeError, OverflowError):
                raise NotData(f"{form}; a metric is one number, but {name!r} is a {_kind(value)}") from None
        if self.objective not in numbers:
            names = ", ".join(map(repr, numbers)) or "no metric"
            raise NotData(f"{form}; its objective is {self.objective!r}, but it returned {names}")
        return state, numbers

    def check_size(self, part_sizes: Mapping[str, int], epoch: int) -> None:
        """Raise NotData for a state that has grown too large."""
        if sum(part_sizes.values()) > self.largest:
            raise NotData(
                f"the state of {self.title} may have {self.largest:,} bytes, but after epoch {epoch} it has "
                f"{sum(part_sizes.values()):,}, most of them in {_heaviest(part_sizes)}; keep less there, or give "
                "the task a higher largest="
            )

    def measured(self) -> Mapping[str, float]:
        returned = decode(self.returned.tree)
        return {} if returned is None else returned[1]

    def network_views(self, member: int) -> dict[str, Tensor]:
        """Return the arrays of floats in the state, by path."""
        arrays = self.returned.tree["arrays"]
        return {path.removeprefix("0."): x for path, x in arrays.items() if x.is_floating_point()}


class Hyperparameters(SimpleNamespace):
    """Hyperparameters of one call, nested like their space.

    They are attributes, and entries as of a dictionary: ``hp.lr``, ``hp["lr"]``, ``Model(**hp)``.
    """

    @classmethod
    def of(cls, space: Mapping[str, Any], values: Mapping[str, Any]) -> Hyperparameters:
        """Create them from complete values; those that do not apply are None."""
        return cls(
            **{
                name: cls.of(entry, values.get(name, {})) if isinstance(entry, Space) else values.get(name)
                for name, entry in space.items()
            }
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked by libraries that inspect objects
            raise AttributeError(name)
        raise AttributeError(f"the space has no hyperparameter {name!r}{near(name, [*vars(self)])}")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def keys(self) -> Iterable[str]:
        """Return the names, for ``**hp``."""
        return vars(self).keys()


_guard = cache(Guard)


@contextmanager
def _settings_to_itself(title: str) -> Iterator[None]:
    """Let a function have settings of the process to itself, see `surroundings`."""
    guard = _guard(title)
    guard.apply()
    try:
        yield
    finally:
        guard.leave([setting.get() for setting in guard.settings])


def _further(function: Function) -> tuple[str, ...]:
    """Return the names of the further arguments that a function takes.

    Raises:
        TypeError: it does not take hyperparameters, state and seed.
    """
    parameters = inspect.signature(function).parameters.values()
    further = tuple(parameter.name for parameter in parameters if parameter.name in FURTHER)
    try:
        inspect.signature(function).bind(*ARGUMENTS, **dict.fromkeys(further))
    except TypeError as error:
        raise TypeError(
            f"a task's function takes {', '.join(ARGUMENTS)}, and {' and '.join(FURTHER)} if it names them, but "
            f"{function.__qualname__}{inspect.signature(function)}: {error}"
        ) from None
    return further


def _heaviest(part_sizes: Mapping[str, int]) -> str:
    """Return the innermost part with most bytes of a state."""
    path: tuple[str, ...] = ("0",)
    half = sum(part_sizes.values()) / 2
    if part_sizes["lists and numbers"] > half:
        return "lists and numbers"
    while True:
        below = Counter[tuple[str, ...]]()
        for name, size in part_sizes.items():
            if (parts := tuple(name.split(".")))[: len(path)] == path != parts:
                below[parts[: len(path) + 1]] += size
        if not below or (heaviest := below.most_common(1)[0])[1] <= half:
            return ".".join(path[1:]) or "many arrays"
        path = heaviest[0]


def _kind(value: Any) -> str:
    return type(value).__name__
