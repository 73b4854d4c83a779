"""Carries a study's rows forward: adds the segments that follow, ends trials, and suggests new ones.

Everything here may be done by any number of workers at once. What they add is a pure function of rows that no longer
change, and is added if absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ...spaces import flatten, unflatten
from ..schedulers.racing import at_once
from ..schedulers.seeds import collapse, seeds_of
from ..storage.branches import Start
from ..storage.rows import Segment, Trial
from ..storage.trials import check_same
from ..study.config import Config
from ..study.objectives import objectives_of
from ..study.plan import Branch, Plan
from .configuring import load_task
from .view import View

if TYPE_CHECKING:
    from ...tasks.checkpoint.storage import Storage
    from ...tasks.task import Task
    from ..storage.store import Store


KEPT = ("options", "options.snapshots")  # what is kept of the trials changes no result, and may change


def start_study(store: Store, name: str, config: Config) -> Config:
    """Makes the study, or extends it to `config.trials` trials; StudyMismatch names what differs otherwise.

    What an older Rekindle left out of a configuration is what it is by default. Two processes that extend a study at
    once both do so: the second one goes on from what the first has left.
    """

    def change(stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if stored is None:
            return config.to_json()
        known = Config.from_json(stored, name)
        check_same(name, known.to_json(), config.to_json(), ["trials", *KEPT])
        trials = [*known.trials, *(n for n in config.trials if n > known.trials[-1])]
        kept = {} if config.options == known.options else {"options": dict(config.options)}
        return {**stored, "trials": trials, **kept}

    return Config.from_json(store.change_study(name, change).config, name)


@dataclass(frozen=True)
class Ready:
    """A segment to be trained, with its trial."""

    trial: Trial
    segment: Segment


class Engine:
    """One process's view of a study.

    Attributes:
        algorithm: the class of its tasks.
        complete: whether nothing was left to do at the last look.
    """

    def __init__(self, store: Store, name: str):
        """UnknownStudy names the studies that there are; StoreError if this Rekindle cannot carry on with the study."""
        self.store, self.name = store, name
        self.view = View(store, name)
        self.algorithm = load_task(self.config)
        self.complete = False
        self._spelled: dict[int, dict[str, Any]] = {}  # what Optuna calls the hyperparameters of trials
        self._structures: dict[int, str] = {}  # of trials that were ready once; hyperparameters do not change

    @property
    def config(self) -> Config:
        """The study's, as of the last look."""
        return self.view.config

    def check(self) -> None:
        """Raises what keeps this machine from training the study: a missing package is no fault of a trial's."""
        self.config.probe(self.algorithm)

    def advance(self) -> list[Ready]:
        """Brings the rows as far forward as they go without training; what is ready then, most urgent first."""
        self.view.refresh()
        while plan := self.view.plan():
            if step := self._mine(plan):
                self._carry_forward(step)
            if self.view.refresh() is None and not step:
                break  # the rest is another process's, which is not through with it
        self.complete = self.view.plan().complete
        ready = sorted((self.view.segments[key] for key in self.view.ready), key=self.view.scheduler.priority)
        return [Ready(self.view.trials[segment.number], segment) for segment in ready]

    def _mine(self, step: Plan) -> Plan:
        """What of a plan is for this process to write down: new trials are not, while another process makes them."""
        if not step.makes_trials or self.store.take_turn(self.name, self.view.revision):
            return step
        return replace(step, ask=None, branches=[])

    def ready(self) -> set[tuple[int, int]]:
        """The (number, rung) of all segments that are not finished at this moment."""
        self.view.refresh()
        return self.view.ready

    def _carry_forward(self, step: Plan) -> None:
        """Writes down what a plan says, in one transaction."""
        trials, segments = [], list(step.segments)
        if step.ask is not None:
            trials = self._new_trials(step)
            epochs = self.config.rungs[step.rung]
            begin = [trial for trial in trials if trial.number % seeds_of(self.config) < at_once(self.config)]
            segments += [Segment(trial.number, step.rung, epochs) for trial in begin]
        trials += self._branches(step.branches)
        since = self.view.revision if step.exact else None
        self.store.carry_forward(self.name, trials=trials, segments=segments, finished=step.finished, since=since)

    def structure(self, ready: Ready) -> tuple[str, int, int]:
        """Equal for segments that can train as one cohort from rung to rung."""
        number = ready.trial.number
        if number not in self._structures:
            values = unflatten(ready.trial.params)
            structure = self.algorithm.learner.hyperparameters.structure(values)
            self._structures[number] = repr(sorted(structure.items()))
        return self._structures[number], ready.segment.rung, ready.segment.epochs

    def task(self, trial: Trial, storage: Storage | None) -> Task:
        """The task of a trial's row."""
        start = trial.attrs.get("start")
        return self.config.make_task(
            self.algorithm, trial.params, storage, start and start["digest"], trial.attrs.get("seed")
        )

    def _new_trials(self, step: Plan) -> list[Trial]:
        from ..samplers.suggest import suggest  # Optuna takes a while to import, and most looks ask for nothing

        assert step.ask is not None
        fixed = self.config.fixed
        # Several objectives are read from the segments; of one, the plan holds the scores.
        rows = self.view.segments.values() if len(objectives_of(self.config)) > 1 else []
        seen, segments = collapse(self.config, self.view.trials.values() if step.seen else [], rows)
        seeds = seeds_of(self.config)
        new = []
        found = suggest(self.config, seen, step, self._check, segments, self._spelled)
        for number, values in zip(step.ask, found, strict=True):
            for replicate in range(seeds):
                seed = self.config.seed + replicate
                task = self.config.make_task(self.algorithm, {**fixed, **flatten(values)}, None, seed=seed)
                attrs = {"bracket": step.bracket, **({"seed": seed} if seeds > 1 else {})}
                new.append(Trial(number * seeds + replicate, task.uid, task.identity["hyperparameters"], attrs))
        return new

    def _branches(self, branches: Sequence[Branch]) -> list[Trial]:
        """The rows of branches, whose tasks have their first checkpoints already."""
        config, parents = self.config, [self.view.trials[branch.start.number].params for branch in branches]
        if branches and config.options["explore"] == "pb2":
            from ..schedulers.pb2 import Bandit

            bandit = Bandit(config, self.view.trials.values(), self.view.segments.values(), branches)
            values = [bandit.explore(*each, self._check) for each in zip(branches, parents, strict=True)]
        else:
            from ..schedulers.explore import explore

            values = [
                explore(config, parent, branch.generation, branch.member, self._check)
                for branch, parent in zip(branches, parents, strict=True)
            ]
        return [self._branch(*each) for each in zip(branches, values, strict=True)]

    def _branch(self, branch: Branch, values: Mapping[str, Any]) -> Trial:
        parent = self.view.trials[branch.start.number]
        assert branch.start.digest is not None
        start = Start(parent.uid, branch.start.epochs, branch.start.digest)
        task = self.config.make_task(self.algorithm, values, None, start.digest, parent.attrs.get("seed"))
        self.store.branch(task.uid, task.identity, start)
        place = {"bracket": 0, "member": branch.member, "generation": branch.generation}
        attrs = {**place, "parent": parent.number, "start": asdict(start)}
        attrs |= {name: parent.attrs[name] for name in ("seed",) if name in parent.attrs}
        return Trial(branch.number, task.uid, task.identity["hyperparameters"], attrs)

    def _check(self, values: Mapping[str, Any]) -> None:
        self.config.make_task(self.algorithm, {**self.config.fixed, **flatten(values)}, None)
