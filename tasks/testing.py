"""Exactness tests for any task to inherit.

    class TestMyTask(ExactnessSuite):
        task = MyTask
        env = "CartPole-v1"
        hyperparameters = {"num_steps": 32, "epoch_steps": 256}

The suite needs no test framework; pytest finds the methods by name. Override the class attributes to test more.
"""

from __future__ import annotations

import atexit
import importlib
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..spaces import flatten, unflatten
from ..spaces.dimension import Maybe
from .base_learner import BaseLearner
from .checkpoint.state import Tree, copy, difference, pack, unpack
from .checkpoint.torch_state import part_of
from .cohort import Cohort
from .envs import EnvSpec
from .errors import StateMismatch
from .task import Task

# Each line of its input names a task to resume. It does so in a fork of itself, which has not trained anything yet.
SERVER = """
import json, os, sys
from rekindle.tasks.testing import fit_what_was_left
for line in sys.stdin:
    folder, path, *arguments = json.loads(line)
    if not (child := os.fork()):
        for number in (1, 2):
            os.dup2(os.open(os.path.join(folder, "errors"), os.O_WRONLY | os.O_APPEND), number)
        status = 1
        try:
            sys.path[:0] = path
            fit_what_was_left(folder, *arguments)
            status = 0
        except Exception:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


MOST = 8  # differences that a message names


@dataclass
class Trained:
    """States of one task at the end of its first two epochs.

    The task itself is in the middle of its third epoch.

    Attributes:
        task: the task.
        first: state after the first epoch.
        first_kept: copy of `first`, made when `first` was taken; the two differ if training modified `first`.
        last: state after the second epoch.
        digest: digest of `last`.
        metrics: metrics of the second epoch.
        history: history of both epochs.
        evaluation: return after the second epoch.
        random_state_kept: whether training left the global random generators untouched.
    """

    task: Task
    first: Tree
    first_kept: Tree
    last: Tree
    digest: str
    metrics: Mapping[str, Any]
    history: list[Any]
    evaluation: float
    random_state_kept: bool


class VariantSuite:
    """Tests that every variant of an algorithm must pass.

    The tests of a variant share one training, so `make` must always create the same task.

    Attributes:
        task: class under test.
        env: its environment; None for a task without one.
        hyperparameters: values that make an epoch take a fraction of a second.
        variants: changes to `hyperparameters`, each tested on its own; together they should use the whole space.
        inert: tuned hyperparameters that affect only the first state, or affect training too rarely to show within an
            epoch. A test fails for any other one that changes nothing, and names it.
        cohort_size: number of members that train together.
        device: torch device of all training.
    """

    task: ClassVar[type[Task]]
    env: ClassVar[str | EnvSpec | None] = "CartPole-v1"
    hyperparameters: ClassVar[dict[str, Any]] = {}
    variants: ClassVar[Sequence[dict[str, Any]]] = ({},)
    inert: ClassVar[frozenset[str]] = frozenset()
    cohort_size: ClassVar[int] = 3
    device: ClassVar[str] = "cpu"

    def make(self, seed: int = 3, **changes: Any) -> Task:
        """Create the task, with changes to the hyperparameters, dotted or nested."""
        task = self.task(self.env, seed=seed, device=self.device)
        return task.init(**unflatten({**flatten(self.hyperparameters), **flatten(changes)}))

    def tuned(self, task: Task) -> dict[str, Any]:
        """Return the values that a driver may change while the task trains.

        These are the numbers that are searched and not structural.
        """
        space = task.learner.space_in(task.env)
        searched = {name for name, dimension in space.flat().items() if dimension.search}
        assert task.hyperparameters is not None
        dynamic = space.dynamic(task.hyperparameters)
        return {
            k: v for k, v in dynamic.items() if k in searched and isinstance(v, float | int) and not isinstance(v, bool)
        }

    def trained(self, changes: Mapping[str, Any]) -> Trained:
        """Return the uninterrupted training of this variant, computed once."""
        key = type(self), json.dumps(flatten(changes), sort_keys=True)
        if key not in _TRAINED:
            for other in [other for other in _TRAINED if other[0] is not type(self)]:
                del _TRAINED[other]
            before = _global_random_state()
            task = self.make(**changes)
            task.fit(1)
            first = task.state_dict()
            first_kept = copy(first)
            task.fit(2)
            metrics, history, evaluation = task.metrics, list(task.history), task.evaluate(3)
            last, digest, random_state_kept = task.state_dict(), task.digest, before == _global_random_state()
            task.member_ref().learner.run_epoch(stop=lambda: True)  # in the middle of an epoch, more state is in use
            _TRAINED[key] = Trained(
                task, first, first_kept, last, digest, metrics, history, evaluation, random_state_kept
            )
        return _TRAINED[key]

    def loaded(self, state: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Task:
        """Return a task of this variant that has loaded a state."""
        task = self.make(**(changes or self.variants[0]))
        task.load_state_dict(state)
        return task

    def test_resuming_equals_not_stopping(self) -> None:
        for changes in self.variants:
            whole = self.trained(changes)
            again = self.loaded(whole.first, changes).state_dict()
            third = self.loaded(again, changes)
            third.fit(2)
            check_equal(
                third.state_dict(), whole.last, "a task that is loaded and trained on is one that never stopped"
            )
            check_equal(whole.first, whole.first_kept, "a state is a copy, which training leaves alone")
            check_equal(again, whole.first_kept, "a state is a copy, which the training of what loaded it leaves alone")
            check_equal(third.metrics, whole.metrics, "metrics after resuming are those without a stop")
            assert third.evaluate(3) == whole.evaluation, "the evaluation after resuming is that without a stop"

    def test_loading_brings_back_everything_that_training_changes(self) -> None:
        for changes in self.variants:
            task = self.trained(changes).task
            learner = task.member_ref().learner
            fresh = type(learner)(task.env, [task.seed], [task.hyperparameters or {}], task.device)
            forgotten = forgotten_state(learner, fresh, learner.member_state(0))
            assert forgotten == [], f"{type(learner).__name__} forgets {', '.join(forgotten)}"

    def test_every_tuned_hyperparameter_matters_after_loading(self) -> None:
        matter: set[str] = set()
        everything: set[str] = set()
        for changes in self.variants:
            whole = self.trained(changes)
            task = self.loaded(whole.first, changes)
            tuned = self.tuned(task)
            names = [name for name in tuned if name not in matter | self.inert] or [*tuned][:1]  # never train alone
            others: dict[str, Task] = {}
            for name in names:
                others[name] = self.make(**{**flatten(changes), name: other_value(task, name, tuned[name])})
                others[name].load_state_dict(whole.first, perturb=True)
            Cohort([task, *others.values()]).fit(2)
            check_equal(task.state_dict(), whole.last, "a loaded task in a cohort with others is the task alone")
            check_equal(task.metrics, whole.metrics, "metrics in a cohort with others are those of the task alone")
            assert task.evaluate(3) == whole.evaluation, "the evaluation in a cohort is that of the task alone"
            everything |= tuned.keys()
            for name, other in others.items():
                if not all(torch.equal(a, b) for a, b in zip(other.parameters(), task.parameters(), strict=True)):
                    matter.add(name)
        idle = sorted(everything - matter - self.inert)
        assert idle == [], f"these hyperparameters change nothing after loading: {', '.join(idle)}"

    def test_global_random_state_is_untouched(self) -> None:
        kept = all(self.trained(changes).random_state_kept for changes in self.variants)
        assert kept, "training leaves the global generators of torch, NumPy and random alone (see torch_seed)"

    def test_a_member_of_a_cohort_equals_the_trial_alone(self) -> None:
        for changes in self.variants:
            whole, index = self.trained(changes), max(self.cohort_size - 2, 0)
            together = [
                self.make(10 + member, **self._apart(whole.task, member, changes)) for member in range(self.cohort_size)
            ]
            together[index] = task = self.make(**changes)
            Cohort(together).fit(1)  # the next epoch is that of another cohort, in the test above
            check_equal(task.state_dict(), whole.first, "a member of a cohort is the task alone")
            assert task.history == whole.history[:1], "the metrics of a member of a cohort are those of the task alone"

    def _apart(self, task: Task, member: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes, with another learning rate for each member."""
        tuned = sorted(self.tuned(task), key=lambda name: not name.endswith("lr"))
        apart = {name: value_at(task, name, (member + 1) / (self.cohort_size + 1)) for name in tuned[:1]}
        return {**flatten(changes), **apart}


class ExactnessSuite(VariantSuite):
    """All exactness tests; inherit it once for each task.

    Attributes:
        path: folders to add to `sys.path` in a new process, so that it can import the task and the environment.
    """

    path: ClassVar[Sequence[str]] = ()

    def test_resuming_in_a_new_process_equals_not_stopping(self) -> None:
        whole = self.trained(self.variants[0])
        packed = pack(whole.first)
        with tempfile.TemporaryDirectory() as folder:
            for name, data in {"manifest": packed.manifest, **packed.blobs}.items():
                (Path(folder) / name).write_bytes(data)
            errors = Path(folder) / "errors"
            errors.touch()
            task = whole.task
            env, values = json.dumps(task.env.to_json()), json.dumps(task.hyperparameters)
            arguments = [type(task).__module__, type(task).__name__, env, str(task.seed), values, "2", self.device]
            server = _server()
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps([folder, list(self.path), *arguments]) + "\n")
            server.stdin.flush()
            status = server.stdout.readline().strip()
            assert status == "0", (status, errors.read_text())
            digest = (Path(folder) / "digest").read_text()
        assert digest == whole.digest, "a task that a new process loads and trains on is one that never stopped"

    def test_a_member_that_joins_late_is_not_changed_by_it(self) -> None:
        whole = self.trained(self.variants[0])
        early, late = self.make(0, **self.variants[0]), self.make(**self.variants[0])
        early.fit(1)
        Cohort([early, late]).fit(2)
        check_equal(late.state_dict(), whole.last, "a task that joins one trained further is the task alone")

    def test_a_state_survives_being_packed(self) -> None:
        state = self.trained(self.variants[0]).last
        packed = pack(state)
        check_equal(unpack(packed.manifest, packed.blobs.__getitem__), state, "a state is read as it was stored")

    def test_fitting_again_changes_nothing(self) -> None:
        whole = self.trained(self.variants[0])
        task = self.loaded(whole.last)
        task.fit(1)
        task.fit(2)
        check_equal(task.state_dict(), whole.last, "fit of epochs that are done changes nothing")

    def test_another_seed_is_another_result(self) -> None:
        one, other = self.make(**self.variants[0]), self.make(2, **self.variants[0])
        assert one.uid != other.uid
        if not one.model:  # a function makes its networks in its first epoch
            Cohort([one, other]).fit(1)
        assert difference(other.model, one.model), (
            "networks begin with weights drawn from the seed, but two seeds have the same"
        )

    def test_a_state_of_another_seed_or_structure_is_refused_and_changes_nothing(self) -> None:
        whole, other = self.trained(self.variants[0]), self.make(2, **self.variants[0])
        task = self.loaded(whole.last)
        digest = task.digest
        for state in (other.state_dict(), {**whole.first, "format": 0}, {**whole.first, "structure": "[]"}):
            try:
                task.load_state_dict(state)
            except StateMismatch:
                pass
            else:
                raise AssertionError("a foreign state was taken")
            assert task.digest == digest, "a state that is refused changes nothing"


_TRAINED: dict[tuple[type, str], Trained] = {}  # cache; it holds the variants of one suite at a time


@cache
def _server() -> subprocess.Popen[str]:
    """Start the interpreter whose forks resume tasks from their files.

    Forking it is much faster than a new interpreter that imports torch.
    """
    command = [sys.executable, "-c", SERVER]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # closes its input, at which it ends
    return server


def fit_what_was_left(
    folder: str, module: str, name: str, env: str, seed: str, values: str, epochs: str, device: str
) -> None:
    """Resume a task from its files, train it, and write its digest."""

    def read(file: str) -> bytes:
        return (Path(folder) / file).read_bytes()

    state = unpack(read("manifest"), read)
    task = getattr(importlib.import_module(module), name)(json.loads(env), seed=int(seed), device=device)
    task.init(start=state["identity"].get("start"), **json.loads(values))
    task.load_state_dict(state)
    task.fit(int(epochs))
    (Path(folder) / "digest").write_text(task.digest)


def check_equal(value: Any, expected: Any, law: str) -> None:
    """Raise AssertionError with the places at which two trees differ."""
    places = difference(value, expected)
    more = f" and {len(places) - MOST} more" if len(places) > MOST else ""
    assert not places, f"{law}, but they differ in {', '.join(places[:MOST])}{more}"


def _global_random_state() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()


def other_value(task: Task, name: str, value: float) -> float:
    """Return the end of a range that is furthest from a value."""
    return max((value_at(task, name, u) for u in (0.001, 0.999)), key=lambda end: abs(end - value))


def value_at(task: Task, name: str, u: float) -> float:
    """Return the value at a quantile of a hyperparameter's prior."""
    dimension = task.learner.space_in(task.env).flat()[name]
    dimension = dimension.dimension if isinstance(dimension, Maybe) else dimension
    return dimension.at(u)  # type: ignore[return-value]


def forgotten_state(trained: BaseLearner, fresh: BaseLearner, state: Mapping[str, Any]) -> list[str]:
    """Return the paths of attributes that loading a state does not restore.

    Every attribute of a trained learner is compared with that of a fresh learner that loaded its state.

    Environments are left to their own tests, since a simulator can hold one state in many forms. An object may list in
    `scratch` the attributes that it overwrites before it reads them.
    """
    fresh.load_member(0, state)
    left_out = {id(getattr(trained, "envs", None))}
    return [path for path in _differences(trained, fresh, left_out) if path.split(".")[0] != "envs"]


def _differences(a: Any, b: Any, visited: set[int], path: str = "") -> Iterator[str]:
    """Yield the paths at which two object graphs hold different data.

    Functions and other libraries' objects are skipped.
    """
    if id(a) in visited:
        return
    if isinstance(a, Tensor):
        # a fresh learner may move a tensor to its device when it first needs it
        if not isinstance(b, Tensor) or a.shape != b.shape or not torch.equal(a.detach(), b.detach().to(a.device)):
            yield path
    elif isinstance(a, np.ndarray):
        if not isinstance(b, np.ndarray) or not np.array_equal(a, b):
            yield path
    elif isinstance(a, bool | int | float | str | bytes | np.generic | None):
        if a != b or type(a) is not type(b):
            yield path
    elif type(a) is not type(b):
        yield path
    else:
        visited.add(id(a))
        left, right = _contents(a), _contents(b)
        for name in sorted(left.keys() | right.keys()):
            below = f"{path}.{name}" if path else name
            if name in left and name in right:
                yield from _differences(left[name], right[name], visited, below)
            else:
                yield below


def _contents(x: Any) -> dict[str, Any]:
    """Return a container's items or an object's attributes, by name."""
    if isinstance(x, Mapping):
        return {str(name): value for name, value in x.items()}
    if isinstance(x, list | tuple):
        return {str(index): value for index, value in enumerate(x)}
    foreign = type(x).__module__.startswith(("torch", "numpy", "gymnasium", "mujoco", "Box2D", "builtins"))
    if isinstance(x, nn.Module | torch.optim.Optimizer):
        state: dict[str, Any] = part_of(x).member_state(0)  # type: ignore[union-attr]
        return state
    if foreign or not hasattr(x, "__dict__"):
        return {}
    return {name: value for name, value in vars(x).items() if name not in getattr(x, "scratch", ())}
