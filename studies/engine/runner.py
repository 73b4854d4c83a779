"""The planning loop of a study: plan, suggest trials, insert rows.

Any number of workers may run it at the same time. The rows that they add are a pure function of rows that no longer
change, and are added only if absent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ...spaces import flatten, unflatten
from ...tasks.errors import Stopped
from ..errors import UnknownStudy
from ..samplers.registry import GOOD, LEARNED
from ..schedulers.explore import explore
from ..schedulers.pb2 import PB2
from ..schedulers.racing import at_once
from ..schedulers.registry import remembered
from ..schedulers.seeds import collapse, replicate_seed, seeds_of
from ..storage.branches import Start
from ..storage.commands import BOUNDS, DECISIVE, ENQUEUED, pending
from ..storage.rows import Segment, Study, Trial
from ..storage.studies import change_study, check_same
from ..study.config import BUDGETS, Config
from ..study.environments import environment_of
from ..study.objectives import objectives_of
from ..study.plan import Branch, Plan
from .bounds import resume_if_lifted, stop_if_plateau, stop_if_spent
from .configs import load_task
from .study_rows import StudyRows

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ...tasks.checkpoint.storage import Storage
    from ...tasks.identity import TaskIdentity
    from ...tasks.task import Task
    from ..storage.store import Store


MUTABLE = (
    "options",
    "options.snapshots",
    "options.trial_time",
    "options.weight",
    *(f"options.{bound}" for bound in BOUNDS),
    "options.goal.return",
    *(f"options.budget.{unit}" for unit in BUDGETS),
)  # fields that may change when a study is rerun, since they change no trial's result
KEPT = ("longer", "spaces", GOOD)  # options that stay as stored: changes by extend, and a rule newer than some studies


def scheduler_of(store: Store, name: str) -> str | None:
    """Return the scheduler of a stored study; None without a study."""
    try:
        return Config.from_json(store.study(name).config, name).scheduler
    except UnknownStudy:
        return None


def start_study(store: Store, name: str, config: Config) -> Config:
    """Create a study, or extend it to `config.trials` trials.

    Fields that an older Rekindle did not store take their defaults. If two processes extend a study at the same time,
    the second starts from the result of the first.

    Returns:
        The configuration as stored.

    Raises:
        StudyMismatch: the stored configuration differs in another field.
    """

    def change(stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if stored is None:
            return config.to_json()
        old = Config.from_json(stored, name)
        check_same(name, old.to_json(), config.to_json(), ["trials", *MUTABLE, *(f"options.{key}" for key in KEPT)])
        weight = {key: old.options[key] for key in ("weight",) if key in old.options}  # kept unless another is given
        given = {key: value for key, value in config.options.items() if key not in KEPT}
        options = {**weight, **given, **{key: old.options[key] for key in KEPT if key in old.options}}
        trials = [*old.trials, *(n for n in config.trials if n > old.trials[-1])]
        changed = {} if options == old.options else {"options": options}
        return {**stored, "trials": trials, **changed}

    def work(connection: Connection) -> Study:
        changed = change_study(connection, name, change)
        resume_if_lifted(connection, name)
        return changed

    return Config.from_json(store.database.write(work).config, name)


@dataclass(frozen=True)
class ReadySegment:
    """A segment that a worker may train, with its trial."""

    trial: Trial
    segment: Segment


class StudyRunner:
    """The planning loop of one study, in this process.

    Attributes:
        device: torch device of its tasks, see `Task`.
        rows: rows of the study, as last read.
        algorithm: task class.
        stop: function that returns true to end planning early.
        complete: whether nothing was left to do after the last `advance`.
    """

    def __init__(self, store: Store, name: str, device: str = "cpu"):
        """Read the study.

        Raises:
            UnknownStudy: the storage has no such study.
            StoreError: this Rekindle cannot continue it.
        """
        self.store, self.name, self.device = store, name, device
        self.rows = StudyRows(store, name)
        self.algorithm = load_task(self.config)
        self.stop: Callable[[], bool] = lambda: False
        self.complete = False
        self._renew_at = math.inf  # when to renew the planning lock, if it is held
        self._optuna_params: dict[int, dict[str, Any]] = {}  # by trial: its hyperparameters in Optuna's form
        self._priors = self.config.priors  # priors for which that form is valid
        self._structures: dict[int, str] = {}  # by trial; hyperparameters never change

    @property
    def config(self) -> Config:
        """Configuration of the study, as last read."""
        return self.rows.config

    def check(self) -> None:
        """Raise errors that prevent all training here, such as a missing package."""
        self.config.probe(self.algorithm, self.device)

    def advance(self) -> list[ReadySegment]:
        """Add all rows that follow, and return the ready segments by urgency."""
        self.rows.refresh()
        runs = self.rows.hold is None and not self.rows.plan().complete
        if runs and (stop_if_spent(self.store, self.rows) or stop_if_plateau(self.store, self.rows)):
            self.rows.refresh()
        while self.rows.hold is None and (plan := self.rows.plan()):
            self._raise_if_asked()
            if additions := self._without_new_trials_unless_planner(plan):
                self._write(additions)
            self._renew_at = math.inf
            if self.rows.refresh() is None and not additions:
                break  # another process is still writing the rest
        self.complete = self.rows.plan().complete
        ready = sorted((self.rows.segments[key] for key in self.rows.ready), key=self.rows.scheduler.priority)
        return [ReadySegment(self.rows.trials[segment.number], segment) for segment in ready]

    def _without_new_trials_unless_planner(self, plan: Plan) -> Plan:
        """Return the plan, without new trials while another process creates them."""
        if not plan.makes_trials:
            return plan
        if not self.store.acquire_planning(self.name, self.rows.revision):
            return replace(plan, ask=None, branches=[])
        self._renew_at = time.monotonic() + self.store.planning_seconds / 4
        return plan

    def ready(self) -> set[tuple[int, int]]:
        """Return the keys (number, rung) of all segments that are ready now."""
        self.rows.refresh()
        return self.rows.ready

    def _write(self, plan: Plan) -> None:
        """Write the rows of a plan in one transaction.

        The first checkpoints of branches are written before; repeating that is harmless.
        """
        trials, segments = [], list(plan.segments)
        if plan.ask is not None:
            trials = self._new_trials(plan)
            epochs = self.config.rungs[plan.rung]
            first = [trial for trial in trials if trial.replicate < at_once(self.config)]
            segments += [Segment(trial.number, plan.rung, epochs) for trial in first]
        trials += self._branches(plan.branches)
        since = self.rows.revision if plan.exact else None
        self.store.add_rows(
            self.name,
            trials=trials,
            segments=segments,
            finished=plan.finished,
            since=since,
            commands_known=len(self.rows.commands),
        )

    def structure(self, ready: ReadySegment) -> tuple[str, int, int]:
        """Return a key that segments of one possible cohort share."""
        number = ready.trial.number
        if number not in self._structures:
            values = unflatten(ready.trial.params)
            env = environment_of(self.config, ready.trial.replicate)
            structure = self.config.space_in(self.algorithm, env).structure(values)
            self._structures[number] = repr((self.config.environments.index(env), sorted(structure.items())))
        return self._structures[number], ready.segment.rung, ready.segment.epochs

    def task(self, trial: Trial, storage: Storage | None) -> Task:
        """Create the task of a trial."""
        start = trial.attrs.get("start", {}).get("digest")
        seed = trial.attrs.get("seed")
        env = environment_of(self.config, trial.replicate)
        return self.config.make_task(self.algorithm, trial.params, storage, start, seed, self.device, env)

    def _new_trials(self, plan: Plan) -> list[Trial]:
        from ..samplers.suggest import suggest  # slow to import (Optuna), and mostly not needed

        assert plan.ask is not None
        # The plan holds the scores of one objective; several objectives are read from the segments.
        several = len(objectives_of(self.config)) > 1
        rows = remembered(self.rows.trials.values(), self.rows.segments.values())[1] if several else []
        needed = plan.seen or self.config.options.get(LEARNED)
        seen, segments = collapse(self.config, self.rows.trials.values() if needed else [], rows)
        seeds = seeds_of(self.config)
        waiting = pending(self.rows.commands, self.rows.trials.values())
        free = [number for number in plan.ask if number >= len(self.config.options.get("known", []))]
        taken = dict(zip(free, waiting, strict=False))
        enqueued = {number: command.data["hyperparameters"] for number, command in taken.items()}
        decisive = [command.number for command in self.rows.commands if command.kind in DECISIVE]
        steered = {"commands": decisive[-1] + 1} if decisive else {}
        new = []
        if self._priors != self.config.priors:
            self._optuna_params, self._priors = {}, self.config.priors
        suggestions = suggest(self.config, seen, plan, self._identify, segments, self._optuna_params, enqueued)
        for number, values in zip(plan.ask, suggestions, strict=True):
            identities = [self._identity(values, env) for env in self.config.environments]
            self._raise_if_asked()
            for replicate in range(seeds):
                if replicate % 100 == 0:
                    self._raise_if_asked()
                seed, identity = replicate_seed(self.config, replicate), identities[replicate % len(identities)]
                uid = replace(identity, seed=seed).uid
                attrs = {"bracket": plan.bracket, **({"seed": seed} if seeds > 1 else {}), **steered}
                attrs |= {ENQUEUED: taken[number].number} if number in taken else {}
                new.append(Trial(number * seeds + replicate, uid, dict(identity.values), attrs, seeds=seeds))
        return new

    def _raise_if_asked(self) -> None:
        """Raise Stopped if planning must end; otherwise renew the planning lock.

        Nothing of an unfinished plan is written.
        """
        if time.monotonic() >= self._renew_at:
            self.store.renew_planning(self.name)
            self._renew_at = time.monotonic() + self.store.planning_seconds / 4
        if self.stop():
            raise Stopped(
                "planning was asked to stop; nothing of an unfinished plan is written, and any worker repeats it"
            )

    def _branches(self, branches: Sequence[Branch]) -> list[Trial]:
        """Return the rows of branches, after storing their first checkpoints."""
        config, parents = self.config, [self.rows.trials[branch.start.number].params for branch in branches]
        if branches and config.options["explore"] == "pb2":
            bandit = PB2(config, self.rows.trials.values(), self.rows.segments.values(), branches)
            values = [bandit.explore(*each, self._identity) for each in zip(branches, parents, strict=True)]
        else:
            values = [
                explore(config, parent, branch.generation, branch.member, self._identity)
                for branch, parent in zip(branches, parents, strict=True)
            ]
        return [self._branch(*each) for each in zip(branches, values, strict=True)]

    def _branch(self, branch: Branch, values: Mapping[str, Any]) -> Trial:
        parent = self.rows.trials[branch.start.number]
        assert branch.start.digest is not None
        start = Start(parent.uid, branch.start.epochs, branch.start.digest)
        identity = self.config.identity(self.algorithm, values, start.digest, parent.attrs.get("seed"))
        self.store.branch(identity.uid, identity.to_json(), start)
        attrs: dict[str, Any] = {"bracket": 0, "member": branch.member, "generation": branch.generation}
        attrs |= {"parent": parent.number, "start": asdict(start)}
        attrs |= {name: parent.attrs[name] for name in ("seed",) if name in parent.attrs}
        return Trial(branch.number, identity.uid, dict(identity.values), attrs)

    def _identify(self, values: Mapping[str, Any]) -> TaskIdentity:
        """Return the identity of a suggestion; raise Stopped if planning must end."""
        self._raise_if_asked()
        return self._identity(values)

    def _identity(self, values: Mapping[str, Any], env: Mapping[str, Any] | None = None) -> TaskIdentity:
        """Return the identity of a suggestion; raise ValueError for invalid values."""
        return self.config.identity(self.algorithm, {**self.config.fixed, **flatten(values)}, env=env)
