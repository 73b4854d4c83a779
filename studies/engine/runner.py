"""The planning loop of a study: plan, suggest trials, insert rows.

Any number of workers may run it at the same time. The rows that they add are a pure function of rows that no longer
change, and are added only if absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ...spaces import flatten, unflatten
from ...tasks.errors import Stopped
from ..errors import UnknownStudy
from ..options.study_options import STUDY
from ..samplers.registry import LEARNED, learns
from ..schedulers.confirming import USED
from ..schedulers.explore import explore
from ..schedulers.pb2 import BANDIT, PB2
from ..schedulers.racing import at_once
from ..schedulers.registry import remembered
from ..schedulers.seeds import collapse, replicate_seed, seeds_of
from ..storage.branches import Start
from ..storage.commands import CANCELLED, DECISIVE, ENQUEUED, Command, awaits_probe, pending
from ..storage.rows import Segment, Study, Trial
from ..storage.studies import change_config, change_study, check_same
from ..study.code import FILES
from ..study.config import EVAL_STEPS, GOOD, OPENS, RESUMES, WIDENS, Config
from ..study.environments import environment_of
from ..study.objectives import ranks_by_score
from ..study.plan import Branch, Plan
from ..study.repeats import best_to_repeat
from .bounds import resume_if_lifted, stop_at_bounds
from .checked_config import check_code, check_machine, load_task
from .study_rows import StudyRows

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ...tasks.checkpoint.storage import Storage
    from ...tasks.identity import TaskIdentity
    from ...tasks.task import Task
    from ..samplers.suggest import OptunaParams
    from ..storage.store import Store


MUTABLE = {name for name, option in STUDY.items() if option.mutable}
FIRST = 16  # trials whose policies a probe plays untrained
# Options that stay as stored unless they are given: changes since, and what follows from newer rules or is checked
# by itself.
KEPT = ("longer", "spaces", "portfolio", "repeats", GOOD, EVAL_STEPS, WIDENS, OPENS, USED, FILES)


def _lasting(config: Config, given_options: Collection[str]) -> dict[str, Any]:
    """Return what a rerun may not change of a configuration."""
    options = {key: value for key, value in config.options.items() if key not in {*MUTABLE, *KEPT, RESUMES}}
    if "repeats" in given_options:
        options["repeats"] = config.options.get("repeats", 0)
    if "portfolio" in given_options:
        options["portfolio"] = "auto" if config.portfolio or OPENS in config.options else "off"
    return {**config.to_json(), "options": options}


def _with_stored_starts(config: Config, stored: Config) -> Config:
    """Return the configuration with the first trials of the stored one.

    Those of a task with starts, such as auto, follow from the size of the study and from newer rules. If the user knows
    others, nothing changes.
    """
    from ...tasks import load

    old, new = stored.options.get("known", []), config.options.get("known", [])
    count = min(len(old), len(new))
    if not old or old == new or old[:count] != new[:count] or not load(config.task).starts(config.env):
        return config
    return replace(config, options={**config.options, "known": old})


def with_kept(store: Store, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command's options, with a stored study's where none are given.

    A rerun need not repeat what the first command chose in place of a default.

    Args:
        store: store of the study.
        name: its name; there need not be one.
        options: epochs and options of the command; None where they are absent.
    """
    try:
        config = Config.from_json(store.study(name).config, name)
    except UnknownStudy:
        return dict(options)
    kept: dict[str, Any] = {key: getattr(config, key) for key in ("scheduler", "sampler")}
    kept |= {key: config.options[key] for key in ("eval_episodes", "grid_points") if key in config.options}
    if options.get("env_steps") is None:
        low, high, base = config.epochs
        kept["epochs"] = [low, high] if low < high < base else config.epochs  # a base above high is a default
    if config.scheduling.population:
        kept["epochs"], kept["interval"], kept["population"] = config.epochs[1:2], config.epochs[0], config.trials[-1]
        kept |= {key: config.options[key] for key in ("exploit", "explore")}
    else:
        kept["generation"] = config.generation
        if config.sampling.defaults:  # a grid has as many trials as points
            kept["trials"] = config.trials[-1]
    return {**options, **{key: value for key, value in kept.items() if options.get(key) is None}}


def start_study(
    store: Store, name: str, config: Config, priors: Collection[str] | None = None, given_options: Collection[str] = ()
) -> Config:
    """Create a study, or extend it to `config.trials` trials.

    Fields that an older Rekindle did not store take their defaults. If two processes extend a study at the same time,
    the second starts from the result of the first.

    Args:
        store: store of the study.
        name: name of the study.
        config: its configuration.
        priors: dotted names of the hyperparameters whose priors the user gives; a study keeps those of others, which
            may have changed since. None for all.
        given_options: names of the options that the user gives; of `KEPT` and fewer trials, these alone count.

    Returns:
        The configuration as stored.

    Raises:
        StudyMismatch: the stored configuration differs in another field.
        MachineMismatch: files that its trainings start are others here.
    """

    def change(stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if stored is None:
            return config.to_json()
        old = Config.from_json(stored, name)
        ours = config.space if priors is None else {**old.space, **{path: config.space[path] for path in priors}}
        fewer = "trials" in given_options and config.trials[-1] < old.trials[-1] and config.trials[-1] not in old.trials
        resumed = _with_stored_starts(config, old)
        wanted = replace(resumed, space=ours, trials=config.trials if fewer else old.trials)
        check_same(name, _lasting(old, given_options), _lasting(wanted, given_options))
        check_code(name, old.options.get(FILES, {}), config.options.get(FILES, {}))
        # The old ones are kept unless another is given.
        old_options = {key: old.options[key] for key in ("weight", RESUMES) if key in old.options}
        new = {key: value for key, value in resumed.options.items() if key not in KEPT}
        options = {**old_options, **new, **{key: old.options[key] for key in KEPT if key in old.options}}
        trials = [*old.trials, *(n for n in config.trials if n > old.trials[-1])]
        changed = {} if options == old.options else {"options": options}
        return {**stored, "trials": trials, **changed}

    def work(connection: Connection) -> Study:
        changed = change_study(connection, name, change)
        resume_if_lifted(connection, name)
        return changed

    return Config.from_json(store.database.write(work).config, name)


def note_resumes(store: Store, algorithm: type[Task], differs: str) -> None:
    """Note in all studies of a program what a resume changes.

    Args:
        store: store of the studies.
        algorithm: task class of the program.
        differs: what a resume changes; "" for nothing.
    """
    files = dict(algorithm.learner.files())

    def is_of_program(config: Mapping[str, Any]) -> bool:
        return config.get("task") == algorithm.name and config.get("options", {}).get(FILES, {}) == files

    def change(stored: Mapping[str, Any]) -> Mapping[str, Any]:
        # since it was listed, another process may have given it other files
        return (
            {**stored, "options": {**stored.get("options", {}), RESUMES: differs}} if is_of_program(stored) else stored
        )

    for study in store.studies():
        if is_of_program(study.config):
            with suppress(UnknownStudy):  # it was deleted meanwhile
                store.database.write(partial(change_config, name=study.name, change=change))


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
        self._renewed: float | None = None  # when the planning lock was taken or last renewed, while it is held
        self._optuna_params: dict[str, OptunaParams] = {}  # by priors, from which Optuna's form of a trial follows
        self._structures: dict[int, str] = {}  # by trial; hyperparameters never change

    @property
    def config(self) -> Config:
        """Configuration of the study, as last read."""
        return self.rows.config

    def check(self) -> None:
        """Raise errors that prevent all training here, such as a missing package."""
        self.check_machine()
        self.config.probe(self.algorithm, self.device)

    def check_machine(self) -> None:
        """Raise MachineMismatch unless this machine can train the study now."""
        check_machine(self.name, self.config, self.algorithm)

    def advance(self) -> list[ReadySegment]:
        """Add all rows that follow, and return the ready segments by urgency."""
        rows = self.rows
        rows.refresh()
        runs = rows.hold is None and not rows.plan().complete
        if runs and stop_at_bounds(self.store, rows):
            rows.refresh()
        while rows.hold is None and (plan := rows.plan()):  # more rows may follow from those just written
            self.raise_if_asked()
            if plan.makes_trials and (awaits_probe(rows.commands) or not self.is_planner()):
                plan = replace(plan, ask=None, branches=[])
            if plan:
                self._write(plan)
            if rows.refresh() is None and not plan:
                break  # another process is still writing the rest
        self.complete = rows.plan().complete
        ready = sorted((rows.segments[key] for key in rows.ready), key=rows.scheduler.priority)
        return [ReadySegment(rows.trials[segment.number], segment) for segment in ready]

    def is_planner(self) -> bool:
        """Take the planning lock; return False if another process has it."""
        has_lock = self.store.acquire_planning(self.name, self.rows.revision)
        self._renewed = time.monotonic() if has_lock else None
        return has_lock

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
        segments = [replace(row, state="failed") if self._is_cancelled(row) else row for row in segments]
        revision = self.rows.revision if plan.exact else None
        self.store.add_rows(
            self.name,
            trials=trials,
            segments=segments,
            finished=plan.finished,
            after=revision,
            commands_known=len(self.rows.commands),
        )
        self._renewed = None  # `add_rows` released the lock

    def _is_cancelled(self, row: Segment) -> bool:
        """Return whether a command has ended the trial of a new segment.

        It was cancelled between two segments, so no result follows, and no worker may wait for one.
        """
        return row.number in self.rows.trials and self.rows.trials[row.number].state == CANCELLED

    def structure(self, ready: ReadySegment) -> tuple[str, int, int]:
        """Return a key that segments of one possible cohort share."""
        number = ready.trial.number
        if number not in self._structures:
            values = unflatten(ready.trial.params)
            env = environment_of(self.config, ready.trial.replicate)
            space = self.config.space_in(self.algorithm, env)
            structure, others = space.structure(values), space.dynamic(values)  # see `TaskIdentity.cohort_key`
            parts = self.config.environments.index(env), sorted(structure.items()), sorted(others)
            self._structures[number] = repr(parts)
        return self._structures[number], ready.segment.rung, ready.segment.epochs

    def task(self, trial: Trial, storage: Storage | None) -> Task:
        """Create the task of a trial."""
        start, env = trial.start.digest if trial.start else None, environment_of(self.config, trial.replicate)
        return self.config.make_task(self.algorithm, trial.params, storage, start, trial.seed, self.device, env)

    def _repeats(self, plan: Plan) -> list[Trial]:
        """Return rows of trials that repeat the best, or []."""
        config, rows = self.config, self.rows
        if plan.ask not in config.repeating:
            return []
        trials, segments = remembered(rows.trials.values(), rows.segments.values())
        new = []
        for number, repeat in zip(plan.ask, best_to_repeat(config, trials, segments, len(plan.ask)), strict=False):
            params = repeat.trial.params
            identity = config.identity(self.algorithm, params, seed=repeat.seed)
            attrs = {"bracket": plan.bracket, "seed": repeat.seed, "repeats": repeat.trial.number}
            new.append(Trial(number, identity.uid, params, attrs | self._decisive()))
        return new

    def _decisive(self) -> dict[str, int]:
        """Return the number of commands that new trials know, as an attribute."""
        decisive = [command.number for command in self.rows.commands if command.kind in DECISIVE]
        return {"commands": decisive[-1] + 1} if decisive else {}

    def _new_trials(self, plan: Plan) -> list[Trial]:
        """Return the rows of the trials that the plan asks for."""
        assert plan.ask is not None
        if repeats := self._repeats(plan):
            return repeats
        config, commands, seeds = self.config, self.rows.commands, seeds_of(self.config)
        first = len(config.first_trials)  # first trials, whose hyperparameters were given with the study
        waiting = pending(commands, self.rows.trials.values())
        enqueued = dict(zip((n for n in plan.ask if n >= first), waiting, strict=False))
        new = []
        for number, values in zip(plan.ask, self._suggestions(plan, enqueued), strict=True):
            identities = [self._identity(values, env) for env in config.environments]
            for replicate in range(seeds):
                if replicate % 100 == 0:
                    self.raise_if_asked()
                seed, identity = replicate_seed(config, replicate), identities[replicate % len(identities)]
                attrs: dict[str, Any] = {"bracket": plan.bracket} | self._decisive()
                if seeds > 1:
                    attrs["seed"] = seed
                if number in enqueued:
                    attrs[ENQUEUED] = enqueued[number].number
                uid = replace(identity, seed=seed).uid
                params = self.algorithm.named(identity.algorithm, identity.values)
                new.append(Trial(number * seeds + replicate, uid, params, attrs, seeds=seeds))
        return new

    def first_identities(self) -> list[tuple[type[Task], TaskIdentity]]:
        """Return classes and identities of the first trials, before any result."""
        from ...tasks import load  # slow to import (torch)

        plans = [Plan(ask=numbers[:FIRST], bracket=n) for n, numbers in enumerate(self.config.brackets)][:FIRST]
        suggestions = chain.from_iterable(self._suggestions(plan, {}) for plan in plans)
        identities = [self._identity(values) for values in islice(suggestions, FIRST)]
        return [(load(identity.algorithm), identity) for identity in identities]

    def _suggestions(self, plan: Plan, enqueued: Mapping[int, Command]) -> list[dict[str, Any]]:
        """Return nested hyperparameters for each trial that the plan asks for.

        `enqueued` maps trials to the commands that enqueued their hyperparameters.
        """
        from ..samplers.suggest import suggest  # slow to import (Optuna), and mostly not needed

        config, trials, segments = self.config, self.rows.trials.values(), self.rows.segments.values()
        # The plan holds the scores of one objective; several, and constraints, are read from the segments.
        measured = [] if ranks_by_score(config) else remembered(trials, segments)[1]
        depends = learns(config) or config.options.get(LEARNED)
        configurations, measured = collapse(config, trials if depends else [], measured)
        cache = self._optuna_params.setdefault(repr(config.priors), {})
        values = {number: command.data["hyperparameters"] for number, command in enqueued.items()}
        return suggest(config, configurations, plan, self._identify, measured, cache, values)

    def raise_if_asked(self) -> None:
        """Raise Stopped if planning must end; otherwise renew the planning lock.

        Nothing of an unfinished plan is written.
        """
        if self._renewed is not None and time.monotonic() - self._renewed >= self.store.planning_seconds / 4:
            self.store.renew_planning(self.name)
            self._renewed = time.monotonic()
        if self.stop():
            raise Stopped(
                "planning was asked to stop; nothing of an unfinished plan is written, and any worker repeats it"
            )

    def _branches(self, branches: Sequence[Branch]) -> list[Trial]:
        """Return the rows of branches, after storing their first checkpoints."""
        config, parents = self.config, [self.rows.trials[branch.start.number].params for branch in branches]
        if branches and config.options["explore"] == BANDIT:
            bandit = PB2(config, self.rows.trials.values(), self.rows.segments.values(), branches)
            values = [bandit.explore(*pair, self._identity) for pair in zip(branches, parents, strict=True)]
        else:
            values = [
                explore(config, parent, branch.generation, branch.member, self._identity)
                for branch, parent in zip(branches, parents, strict=True)
            ]
        return [self._branch(*pair) for pair in zip(branches, values, strict=True)]

    def _branch(self, branch: Branch, values: Mapping[str, Any]) -> Trial:
        parent = self.rows.trials[branch.start.number]
        assert branch.start.digest is not None
        start = Start(parent.uid, branch.start.epochs, branch.start.digest)
        identity = self.config.identity(self.algorithm, values, start.digest, parent.seed)
        self.store.branch(identity.uid, identity.to_json(), start)
        attrs: dict[str, Any] = {"bracket": 0, "member": branch.member, "generation": branch.generation}
        attrs |= {"parent": parent.number, "start": asdict(start)}
        attrs |= {} if parent.seed is None else {"seed": parent.seed}
        params = self.algorithm.named(identity.algorithm, identity.values)
        return Trial(branch.number, identity.uid, params, attrs)

    def _identify(self, values: Mapping[str, Any]) -> TaskIdentity:
        """Return the identity of a suggestion; raise Stopped if planning must end."""
        self.raise_if_asked()
        return self._identity(values)

    def _identity(self, values: Mapping[str, Any], env: Mapping[str, Any] | None = None) -> TaskIdentity:
        """Return the identity of a suggestion; raise ValueError for invalid values."""
        return self.config.identity(self.algorithm, {**self.config.fixed, **flatten(values)}, env=env)
