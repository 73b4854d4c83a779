"""Exactness suite, for the tests of any task to inherit.

    class TestMyTask(ExactnessSuite):
        task = MyTask
        env = "CartPole-v1"
        hyperparameters = {"num_steps": 32, "epoch_steps": 256}

It needs no test framework; pytest finds the methods by their names. A class that overrides an attribute tests more.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..spaces import flatten, unflatten
from ..spaces.dimension import Maybe
from .checkpoint.state import copy, difference, pack, unpack
from .cohort import Cohort
from .envs import EnvSpec
from .errors import StateMismatch
from .learner import Learner
from .task import Task

CONTINUE = """
import importlib, json, sys
from pathlib import Path
from rekindle.tasks.checkpoint.state import unpack
folder, module, name, env, seed, hyperparameters, epochs = sys.argv[1:]
task = getattr(importlib.import_module(module), name)(json.loads(env), seed=int(seed))
read = lambda name: (Path(folder) / name).read_bytes()
state = unpack(read("manifest"), read)
task.init(start=state["identity"].get("start"), **json.loads(hyperparameters))
task.load_state_dict(state)
task.fit(int(epochs))
print(task.digest)
"""


class VariantSuite:
    """The tests of resuming that every variant of an algorithm must pass.

    Attributes:
        task, env, hyperparameters: what is tested; small, so that an epoch takes a fraction of a second.
        variants: further hyperparameters, each laid over `hyperparameters`, so that together they use the whole space.
        inert: tuned hyperparameters that act on the first state only, or too rarely to be seen in an epoch.
    """

    task: ClassVar[type[Task]]
    env: ClassVar[str | EnvSpec] = "CartPole-v1"
    hyperparameters: ClassVar[dict[str, Any]] = {}
    variants: ClassVar[Sequence[dict[str, Any]]] = ({},)
    inert: ClassVar[frozenset[str]] = frozenset()
    cohort_size: ClassVar[int] = 5

    def make(self, seed: int = 3, **changes: Any) -> Task:
        """Return a task with these changes to the hyperparameters, dotted or nested."""
        return self.task(self.env, seed=seed).init(**unflatten({**flatten(self.hyperparameters), **flatten(changes)}))

    def tuned(self, task: Task) -> dict[str, Any]:
        """Return the hyperparameters of the task that a driver may change.

        They are the searched numbers of the space.
        """
        space = task.learner.hyperparameters
        searched = {name for name, dimension in space.flat().items() if dimension.search}
        assert task.hyperparameters is not None
        dynamic = space.dynamic(task.hyperparameters)
        return {
            k: v for k, v in dynamic.items() if k in searched and isinstance(v, float | int) and not isinstance(v, bool)
        }

    def test_resuming_equals_not_stopping(self) -> None:
        for changes in self.variants:
            whole, first, second, third = (self.make(**changes) for _ in range(4))
            whole.fit(2)
            first.fit(1)
            second.load_state_dict(first.state_dict())
            third.load_state_dict(second.state_dict())
            third.fit(2)
            assert difference(third.state_dict(), whole.state_dict()) == []
            assert third.metrics == whole.metrics
            assert third.evaluate(3) == whole.evaluate(3)

    def test_loading_brings_back_everything_that_training_changes(self) -> None:
        for changes in self.variants:
            task = self.make(**changes)
            task.fit(1)
            assert task.ref is not None
            task.ref.learner.iterate()  # in the middle of an epoch, where more is in flight
            learner = task.ref.learner
            fresh = type(learner)(task.env, [task.seed], [task.hyperparameters or {}])
            forgotten = forgotten_state(learner, fresh, learner.member_state(0))
            assert forgotten == [], f"{type(learner).__name__} forgets {', '.join(forgotten)}"

    def test_every_tuned_hyperparameter_matters_after_loading(self) -> None:
        matter: set[str] = set()
        everything: set[str] = set()
        for changes in self.variants:
            task = self.make(**changes)
            task.fit(1)
            others: dict[str, Task] = {}
            for name, value in self.tuned(task).items():
                if name not in matter | self.inert:
                    others[name] = self.make(**{**flatten(changes), name: other_value(task, name, value)})
                    others[name].load_state_dict(task.state_dict(), perturb=True)
            Cohort([task, *others.values()]).fit(2)
            everything |= self.tuned(task).keys()
            for name, other in others.items():
                if not all(torch.equal(a, b) for a, b in zip(other.parameters(), task.parameters(), strict=True)):
                    matter.add(name)
        idle = sorted(everything - matter - self.inert)
        assert idle == [], f"these hyperparameters change nothing after loading: {', '.join(idle)}"

    def test_global_random_state_is_untouched(self) -> None:
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        before = (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())
        task = self.make()
        task.fit(1)
        task.evaluate(2)
        after = (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())
        assert before == after

    def test_a_member_of_a_cohort_equals_the_trial_alone(self) -> None:
        for changes in self.variants:
            together = [self.make(seed, **self._apart(seed, changes)) for seed in range(self.cohort_size)]
            Cohort(together).fit(2)
            for seed in (0, self.cohort_size - 2):
                alone = self.make(seed, **self._apart(seed, changes))
                alone.fit(2)
                assert difference(alone.state_dict(), together[seed].state_dict()) == []
                assert alone.history == together[seed].history
                assert alone.evaluate(3) == together[seed].evaluate(3)

    def _apart(self, member: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes, with another learning rate for every member."""
        return {**flatten(changes), "optimizer.lr": 1e-3 * (member + 1)}


class ExactnessSuite(VariantSuite):
    """All exactness tests; a test class of each task inherits it once.

    Attributes:
        path: folders that a new process needs to import the task and the environment.
    """

    path: ClassVar[Sequence[str]] = ()

    def test_resuming_again_and_again_equals_not_stopping(self) -> None:
        whole, task = self.make(), self.make()
        whole.fit(3)
        for epochs in (1, 2, 3):
            task.fit(epochs)
            state, task = task.state_dict(), self.make()
            task.load_state_dict(state)
        assert task.digest == whole.digest

    def test_resuming_in_a_new_process_equals_not_stopping(self) -> None:
        whole, first = self.make(), self.make()
        whole.fit(2)
        first.fit(1)
        packed = pack(first.state_dict())
        with tempfile.TemporaryDirectory() as folder:
            for name, data in {"manifest": packed.manifest, **packed.blobs}.items():
                (Path(folder) / name).write_bytes(data)
            env, values = json.dumps(first.env.to_json()), json.dumps(first.hyperparameters)
            arguments = [folder, type(first).__module__, type(first).__name__, env, str(first.seed), values, "2"]
            result = subprocess.run(
                [sys.executable, "-c", CONTINUE, *arguments],
                capture_output=True,
                text=True,
                env=self._environment(),
                check=False,
            )
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == whole.digest

    def _environment(self) -> dict[str, str]:
        folders = [*self.path, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}

    def test_a_member_that_joins_late_is_not_changed_by_it(self) -> None:
        early, late, alone = self.make(0), self.make(1), self.make(1)
        early.fit(1)
        Cohort([early, late]).fit(2)
        alone.fit(2)
        assert alone.digest == late.digest

    def test_a_state_is_a_copy_and_loading_leaves_it_alone(self) -> None:
        task = self.make()
        task.fit(1)
        state = task.state_dict()
        kept = copy(state)
        task.fit(2)
        assert difference(state, kept) == []
        other = self.make()
        other.load_state_dict(state)
        other.fit(2)
        assert difference(state, kept) == []
        assert difference(other.state_dict(), task.state_dict()) == []

    def test_a_state_survives_being_packed(self) -> None:
        task = self.make()
        task.fit(1)
        packed = pack(task.state_dict())
        assert difference(unpack(packed.manifest, packed.blobs.__getitem__), task.state_dict()) == []

    def test_fitting_again_changes_nothing(self) -> None:
        task = self.make()
        task.fit(2)
        digest = task.digest
        task.fit(1)
        task.fit(2)
        assert task.digest == digest

    def test_another_seed_is_another_result(self) -> None:
        one, other = self.make(1), self.make(2)
        one.fit(1)
        other.fit(1)
        assert one.uid != other.uid
        assert one.digest != other.digest

    def test_a_state_of_another_seed_or_structure_is_refused_and_changes_nothing(self) -> None:
        task, other = self.make(1), self.make(2)
        task.fit(1)
        other.fit(1)
        digest = task.digest
        for state in (other.state_dict(), {**task.state_dict(), "format": 0}, {**task.state_dict(), "structure": "[]"}):
            try:
                task.load_state_dict(state)
            except StateMismatch:
                pass
            else:
                raise AssertionError("a foreign state was taken")
            assert task.digest == digest


def other_value(task: Task, name: str, value: float) -> float:
    """Return the value in a range that is furthest from this one."""
    dimension = task.learner.hyperparameters.flat()[name]
    dimension = dimension.dimension if isinstance(dimension, Maybe) else dimension
    ends = [float(dimension.at(u)) for u in (0.001, 0.999)]  # type: ignore[arg-type]
    return max(ends, key=lambda end: abs(end - value))


def forgotten_state(trained: Learner, fresh: Learner, state: Mapping[str, Any]) -> list[str]:
    """Return the names of what a loaded learner lacks.

    Everything in a trained learner is compared with a fresh one that loaded its state.

    The environments are left to their own tests, since one state has many forms in a simulator. An object may list in
    `scratch` the attributes that it overwrites before it reads them.
    """
    fresh.load_member(0, state)
    return [path for path in _differences(trained, fresh, {id(trained.envs)}) if path.split(".")[0] != "envs"]


def _differences(a: Any, b: Any, visited: set[int], path: str = "") -> Iterator[str]:
    """Return the paths at which two object graphs hold other data.

    Functions and other libraries' objects are skipped.
    """
    if id(a) in visited:
        return
    if isinstance(a, Tensor):
        if not isinstance(b, Tensor) or a.shape != b.shape or not torch.equal(a.detach(), b.detach()):
            yield path
    elif isinstance(a, np.ndarray):
        if not isinstance(b, np.ndarray) or not np.array_equal(a, b):
            yield path
    elif isinstance(a, bool | int | float | str | bytes | np.generic | None):
        if a != b or type(a) is not type(b):
            yield path
    else:
        visited.add(id(a))
        yield from _children_differ(a, b, visited, path)


def _children_differ(a: Any, b: Any, visited: set[int], path: str) -> Iterator[str]:
    if type(a) is not type(b):
        yield path
        return
    prefix = f"{path}." if path else ""
    if isinstance(a, Mapping):
        for name in sorted(a.keys() | b.keys(), key=str):
            yield from _pair(a, b, name, visited, prefix + str(name), name in a and name in b)
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            yield path
        for index, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from _differences(x, y, visited, prefix + str(index))
    elif hasattr(a, "__dict__") and not type(a).__module__.startswith(
        ("torch", "numpy", "gymnasium", "mujoco", "Box2D", "builtins")
    ):
        scratch = getattr(a, "scratch", ())
        left = {name: value for name, value in vars(a).items() if name not in scratch}
        right = {name: value for name, value in vars(b).items() if name not in scratch}
        yield from _children_differ(left, right, visited, path)


def _pair(a: Any, b: Any, name: Any, visited: set[int], path: str, both: bool) -> Iterator[str]:
    if both:
        yield from _differences(a[name], b[name], visited, path)
    else:
        yield path
