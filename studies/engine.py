"""Carries a study's rows forward: adds the segments that follow, ends trials, and suggests new ones.

Everything here may be done by any number of workers at once. What they add is a pure function of rows that no longer
change, and is added if absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..spaces import flatten, unflatten
from .branches import Start
from .config import Config
from .errors import StudyMismatch, UnknownStudy
from .replicas import collapse, seeds_of
from .rows import Segment, Trial
from .schedule import Branch, Plan, plan, priority

if TYPE_CHECKING:
    from ..tasks.storage import Storage
    from ..tasks.task import Task
    from .store import Store


def start_study(store: Store, name: str, config: Config) -> Config:
    """Makes the study, or extends it to `config.trials` trials; StudyMismatch names what differs otherwise."""
    try:
        stored = Config.from_json(store.study(name).config, name)
    except UnknownStudy:
        try:
            return Config.from_json(store.create_study(name, config.to_json()).config, name)
        except StudyMismatch:  # another process was quicker
            stored = Config.from_json(store.study(name).config, name)
    trials = [*stored.trials, *(n for n in config.trials if n > stored.trials[-1])]
    extended = {**config.to_json(), "trials": trials}
    return Config.from_json(store.create_study(name, extended, extend=["trials"]).config, name)


@dataclass(frozen=True)
class Ready:
    """A segment to be trained, with its trial."""

    trial: Trial
    segment: Segment


class Engine:
    """One process's view of a study.

    Attributes:
        config: as of the last look; a study may be extended while it runs.
        algorithm: the class of its tasks.
        complete: whether nothing was left to do at the last look.
    """

    def __init__(self, store: Store, name: str):
        """UnknownStudy names the studies that there are; StoreError if this Rekindle cannot carry on with the study."""
        self.store, self.name = store, name
        self.config = Config.from_json(store.study(name).config, name)
        self.algorithm = self.config.load_task()
        self.complete = False

    def advance(self) -> list[Ready]:
        """Brings the rows as far forward as they go without training; what is ready then, most urgent first."""
        while True:
            self.config = Config.from_json(self.store.study(self.name).config, self.name)
            segments = self.store.segments(self.name)  # before the trials, so that each finds its own
            trials = self.store.trials(self.name)
            step = plan(self.config, trials, segments)
            if not step:
                break
            for number, state in step.finished:
                self.store.finish_trial(self.name, number, state)
            if step.ask is not None:
                self.store.add_trials(self.name, self._new_trials(trials, step))
            if step.branches:
                self.store.add_trials(self.name, [self._branch(trials, branch) for branch in step.branches])
            if step.segments:
                self.store.add_segments(self.name, step.segments)
        self.complete = step.complete
        by_number = {trial.number: trial for trial in trials}
        ready = [segment for segment in segments if segment.state == "ready"]
        ready.sort(key=lambda segment: priority(self.config, segment))
        return [Ready(by_number[segment.number], segment) for segment in ready]

    def structure(self, ready: Ready) -> tuple[str, int, int]:
        """Equal for segments that can train as one cohort from rung to rung."""
        values = unflatten(ready.trial.params)
        structure = self.algorithm.learner.hyperparameters.structure(values)
        return repr(sorted(structure.items())), ready.segment.rung, ready.segment.epochs

    def task(self, trial: Trial, storage: Storage | None) -> Task:
        """The task of a trial's row."""
        start = trial.attrs.get("start")
        return self.config.make_task(
            self.algorithm, trial.params, storage, start and start["digest"], trial.attrs.get("seed")
        )

    def _new_trials(self, trials: list[Trial], step: Plan) -> list[Trial]:
        from .suggest import suggest  # Optuna takes a while to import, and most looks ask for nothing

        assert step.ask is not None
        bracket = self.config.brackets.index(step.ask)
        fixed = self.config.fixed
        seen, _ = collapse(self.config, trials, [])
        seeds = seeds_of(self.config)
        rows = []
        for number, values in zip(step.ask, suggest(self.config, seen, step, self._check), strict=True):
            for replicate in range(seeds):
                seed = self.config.seed + replicate
                task = self.config.make_task(self.algorithm, {**fixed, **flatten(values)}, None, seed=seed)
                attrs = {"bracket": bracket, **({"seed": seed} if seeds > 1 else {})}
                rows.append(Trial(number * seeds + replicate, task.uid, flatten(task.hyperparameters or {}), attrs))
        return rows

    def _branch(self, trials: Sequence[Trial], branch: Branch) -> Trial:
        """The row of a branch, whose task has its first checkpoint already."""
        from .explore import explore

        parent = next(trial for trial in trials if trial.number == branch.start.number)
        assert branch.start.digest is not None
        start = Start(parent.uid, branch.start.epochs, branch.start.digest)
        values = explore(self.config, parent.params, branch.generation, branch.member, self._check)
        task = self.config.make_task(self.algorithm, values, None, start.digest, parent.attrs.get("seed"))
        self.store.branch(task.uid, task.identity, start)
        place = {"bracket": 0, "member": branch.member, "generation": branch.generation}
        attrs = {**place, "parent": parent.number, "start": asdict(start)}
        attrs |= {name: parent.attrs[name] for name in ("seed",) if name in parent.attrs}
        return Trial(branch.number, task.uid, flatten(task.hyperparameters or {}), attrs)

    def _check(self, values: Mapping[str, Any]) -> None:
        self.config.make_task(self.algorithm, {**self.config.fixed, **flatten(values)}, None)
