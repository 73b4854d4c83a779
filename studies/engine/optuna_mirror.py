"""Copy of a study in Optuna's own tables, for its dashboard.

Rekindle writes the copy and never reads a result from it. A trial is found in the copy by its uid and number, which are
attributes there; trials that a user adds to the copy are left alone. Only one process copies at a time: the one that
holds the lease of the mirror.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from ...spaces.choices import Choice, Fixed
from ...spaces.dimension import Dimension, Maybe
from ...spaces.ranges import Integer, Range, Real
from ...spaces.values import identity
from ..errors import StoreError, TaskBusy
from ..failures import one_line
from ..samplers.draw import constrained
from ..schedulers.registry import remembered
from ..schedulers.seeds import collapse, seeds_of
from ..storage.rows import EXCLUDED, Segment, Trial, score_of
from ..storage.sql.database import driver_arguments
from ..storage.store import MIRROR
from ..study.config import Config
from ..study.environments import is_across, scale_of
from ..study.objectives import DEFAULT, constraints_of, excesses, objectives_of, value_of
from .study_rows import StudyRows

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage
    from optuna.study import Study as OptunaStudy
    from optuna.trial import FrozenTrial

    from ..storage.locks.leases import StoreLease
    from ..storage.store import Store

MARK = "rekindle"  # user attribute that marks a study in Optuna's tables as a copy
FORM = "rekindle_form"  # user attribute with the version of the copy's layout; a copy of another version is rebuilt
VERSION = 3
UID, NUMBER = "rk_uid", "rk_number"  # user attributes that tell a trial's copy
MAKING = 1.0  # seconds to wait while another process creates Optuna's tables
Row = tuple[Trial, list[Segment], dict[int, float]]  # a trial, its segments and its objective by epoch


class MirrorError(StoreError):
    """Optuna's tables cannot take the copy of a study."""


def mirror(store: Store, name: str, say: Callable[[str], object] = lambda text: None) -> int:
    """Copy what is new, and return the number of trials that changed.

    Nothing is copied while another process copies. Since nothing depends on the copy, an error is only said.
    """
    try:
        with Mirror(store, name) as copy:
            return copy.update()
    except StoreError as error:
        say(f"Optuna's tables were left as they are: {' '.join(str(error).split())}")
        return 0


class Mirror:
    """A copy of a study that `update` brings up to date.

    A confirmation is not copied: its candidates have different numbers of seeds, and Optuna would rank them all the
    same.
    """

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, name
        self.rows = StudyRows(store, name)
        self._ending = ExitStack()
        self._lease: StoreLease | None = None
        self._study: OptunaStudy | None = None
        self._copied: tuple[Config, list[int]] | None = None  # what the whole copy depends on, when it was opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.close()

    def update(self) -> int:
        """Copy what is new, and return the number of trials that changed.

        Raises:
            MirrorError: Optuna could not read or write its tables.
            StoreError: the store failed.
        """
        import optuna

        from ..samplers.suggest import quiet

        self.rows.refresh()
        if self.rows.config.scheduling.confirms or not self._hold():
            return 0
        assert self._lease is not None
        with quiet(optuna.logging.WARNING):
            try:
                decisive = (self.rows.config, [n for n, row in self.rows.trials.items() if row.excluded])
                if self._study is None or decisive != self._copied:
                    self._study, self._copied = self._open(), decisive
                self._lease.check()
                return sum(self._copy(self._study, *row) for row in self._changed(self._study))
            except StoreError:
                raise
            except Exception as error:  # of Optuna or its database: tables of another version, a full disk, ...
                raise MirrorError(f"Optuna's tables of study {self.name!r} cannot be written: {error}") from error

    def _hold(self) -> bool:
        """Return whether this process has the lease of the mirror."""
        if self._lease is None or self._lease.lost:
            try:
                self._lease = self._ending.enter_context(self.store.open(MIRROR + self.name, {"mirror": self.name}))
            except TaskBusy:
                return False
        return True

    def _open(self) -> OptunaStudy:
        import optuna
        from optuna.study import StudyDirection

        config = self.rows.config
        storage = self._study._storage if self._study else _opened(self.store, self._ending)
        objectives = objectives_of(config)
        directions = [StudyDirection[direction.upper()] for direction in objectives.values()]
        create = functools.partial(
            optuna.create_study, storage=storage, study_name=self.name, directions=directions, load_if_exists=True
        )
        study = create()
        copied = study.get_trials(deepcopy=False)
        if copied and MARK not in study.user_attrs:
            raise MirrorError(
                f"study {self.name!r} cannot be shown in Optuna's tables: they hold another one of that name"
            )
        trials, rows = remembered(self.rows.trials.values(), self.rows.segments.values())
        # More epochs reopen complete trials, and other ranges may have other choices, which Optuna keeps for ever.
        form = [VERSION, self.rows.created, *config.options.get("longer", ()), *config.options.get("spaces", ())]
        if is_across(config):  # the scale of several environments changes with their results
            form += [*map(list, scale_of(config, rows))]
        form += [f"without {trial.number}" for trial in trials if trial.excluded]  # it may be complete
        if copied and study.user_attrs.get(FORM) != form:
            optuna.delete_study(study_name=self.name, storage=storage)
            study = create()
        study.set_user_attr(MARK, config.to_json())
        study.set_user_attr(FORM, form)
        study.set_metric_names(list(objectives))
        return study

    def _changed(self, study: OptunaStudy) -> list[tuple[FrozenTrial | None, FrozenTrial]]:
        """Return the trials that differ from their copies, as (copy, trial)."""
        config = self.rows.config
        trials, segments = collapse(config, *remembered(self.rows.trials.values(), self.rows.segments.values()))
        attributes = ((copy.user_attrs, copy) for copy in study.get_trials(deepcopy=False))
        copies = {
            (attributes_of[NUMBER], attributes_of.get(UID)): copy
            for attributes_of, copy in attributes
            if NUMBER in attributes_of
        }
        trials = sorted(trials, key=lambda trial: trial.number)
        trials = [trial for number, trial in enumerate(trials) if trial.number == number]  # up to the first gap
        pairs = [(trial, copies.get((trial.number, trial.uid))) for trial in trials]
        pairs = [(trial, copy) for trial, copy in pairs if copy is None or not copy.state.is_finished()]
        rows: dict[int, list[Segment]] = {}
        for row in sorted(segments, key=lambda row: row.rung):
            rows.setdefault(row.number, []).append(row)
        open_trials = [trial for trial, _ in pairs]
        started = self.store.started([trial.uid for trial in open_trials])
        curves = self._curves(open_trials)
        changed = []
        for trial, copy in pairs:
            now = frozen(config, (trial, rows.get(trial.number, []), curves.get(trial.uid, {})), started.get(trial.uid))
            if copy is None or _changing(copy) != _changing(now):
                changed.append((copy, now))
        return changed

    def _curves(self, trials: Sequence[Trial]) -> dict[str, dict[int, float]]:
        """Return the objective by epoch, by uid.

        Return nothing for a study of several objectives or seeds.
        """
        [name, *others] = objectives_of(self.rows.config)
        if others or seeds_of(self.rows.config) > 1:
            return {}
        metrics = self.store.metrics_after({trial.uid: 0 for trial in trials})
        return {uid: {epoch: row[name] for epoch, row in rows if name in row} for uid, rows in metrics.items()}

    def _copy(self, study: OptunaStudy, copy: FrozenTrial | None, now: FrozenTrial) -> bool:
        """Write one trial."""
        import sqlalchemy as sa
        from optuna.trial import TrialState

        storage = study._storage
        if copy is None:
            storage.create_new_trial(study._study_id, now)
            return True
        trial = copy._trial_id
        if copy.state == TrialState.WAITING and now.state != TrialState.WAITING:
            storage.set_trial_state_values(trial, TrialState.RUNNING)
        for step, value in now.intermediate_values.items():
            if step not in copy.intermediate_values:
                storage.set_trial_intermediate_value(trial, step, value)
        for name, attribute in now.user_attrs.items():
            if copy.user_attrs.get(name) != attribute:
                storage.set_trial_user_attr(trial, name, attribute)
        for name, attribute in now.system_attrs.items():
            storage.set_trial_system_attr(trial, name, attribute)
        if now.state.is_finished():
            storage.set_trial_state_values(trial, now.state, now.values)
        times = {"start": now.datetime_start, "end": now.datetime_complete}  # Optuna writes the present
        with storage._backend.engine.begin() as connection:  # type: ignore[attr-defined]
            statement = "UPDATE trials SET datetime_start = :start, datetime_complete = :end WHERE trial_id = :trial"
            typed = sa.text(statement).bindparams(sa.bindparam("start", type_=sa.DateTime))
            typed = typed.bindparams(sa.bindparam("end", type_=sa.DateTime))
            connection.execute(typed, {**times, "trial": trial})
        return True


def _changing(trial: FrozenTrial) -> tuple[object, ...]:
    """Return the parts of a trial that may change."""
    return trial.state, trial.intermediate_values, trial.user_attrs, trial.system_attrs


def forget(store: Store, name: str, say: Callable[[str], object] = lambda text: None) -> None:
    """Delete the copy of a study from Optuna's tables.

    Since nothing depends on the copy, an error is only said.
    """
    import sqlalchemy as sa

    if not store.database.read(lambda connection: sa.inspect(connection).has_table("studies")):
        return
    with ExitStack() as ending:
        try:
            storage = _opened(store, ending)
            copy = storage.get_study_id_from_name(name)
            if MARK in storage.get_study_user_attrs(copy):
                storage.delete_study(copy)
        except KeyError:
            return
        except Exception as error:  # noqa: BLE001 - tables of another version, for example; the study is deleted
            say(f"the copy of study {name!r} in Optuna's tables stays: {' '.join(str(error).split())}")


def _opened(store: Store, ending: ExitStack) -> RDBStorage:
    """Return Optuna's storage; its tables are created if missing."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    url = store.database.url
    options = {"connect_args": driver_arguments(url)} if url.get_backend_name() == "postgresql" else {}
    for waits in (MAKING, 0.0):
        try:
            storage = optuna.storages.RDBStorage(url.render_as_string(hide_password=False), dict(options))
            break
        except SQLAlchemyError:  # another process is creating the tables right now, which Optuna does not handle
            if not waits:
                raise
            time.sleep(waits)
    ending.callback(storage.engine.dispose)
    ending.callback(storage.remove_session)
    return storage


def frozen(config: Config, row: Row, started: float | None) -> FrozenTrial:
    """Return a trial in Optuna's form.

    Args:
        config: configuration of the study.
        row: the trial.
        started: when its training began; None if it has not.
    """
    from optuna.trial import TrialState, create_trial

    trial, segments, curve = row
    failed = dict.fromkeys(("failed", "cancelled"), TrialState.FAIL)
    ends = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, **failed}
    waiting = TrialState.WAITING if started is None else TrialState.RUNNING
    state = TrialState.FAIL if trial.excluded else ends.get(trial.state, waiting)
    done = [row for row in segments if row.state == "done"]
    objectives = objectives_of(config)
    # Optuna has intermediate values of one objective only.
    measured = {row.epochs: _values(objectives, row)[0] for row in done if len(objectives) == 1}
    last = max((row.epochs - (row.state == "ready") for row in segments), default=0)  # another study may train further
    measured = {epoch: value for epoch, value in curve.items() if epoch <= last} | measured
    values, distributions = {}, {}
    for name in config.searched.flat():
        dimensions = [space.flat()[name] for space in config.spaces]
        if name in trial.params and (parameter := _parameter(dimensions, trial.params[name])) is not None:
            values[name], distributions[name] = parameter
    frozen_trial = create_trial(
        state=TrialState.RUNNING,
        params=values,
        distributions=distributions,
        intermediate_values=dict(sorted(measured.items())),
        user_attrs=_attributes(trial, segments, done),
        system_attrs=constrained(excesses(constraints_of(config), done[-1].objectives) if done else []),
    )
    frozen_trial.state = state
    if state in (TrialState.COMPLETE, TrialState.PRUNED) and done:
        frozen_trial.values = _values(objectives, done[-1])
    frozen_trial.datetime_start = None if state == TrialState.WAITING else _moment(started or trial.created)
    frozen_trial.datetime_complete = _moment(trial.finished) if state.is_finished() else None
    return frozen_trial


def _attributes(trial: Trial, segments: Sequence[Segment], done: Sequence[Segment]) -> dict[str, Any]:
    """Return the properties that Optuna has no column for, as user attributes."""
    attributes: dict[str, Any] = {UID: trial.uid, NUMBER: trial.number}
    if segments:
        attributes |= {"rk_rung": segments[-1].rung, "rk_epochs_planned": segments[-1].epochs}
    if done:
        attributes["rk_digest"] = done[-1].digest
    if trial.start:
        attributes |= {"rk_parent": trial.parent, "rk_parent_epochs": trial.inherited}
    places = ("bracket", "member", "generation")
    attributes |= {f"rk_{name}": trial.attrs[name] for name in places if name in trial.attrs}
    if trial.state == "cancelled" or trial.excluded:  # Optuna has no such states
        attributes["rk_state"] = EXCLUDED if trial.excluded else trial.state
    if trial.error:
        attributes["rk_error"] = one_line(trial.error)[:1000]
    return attributes


def _moment(seconds: float | None) -> datetime | None:
    """Return a time as Optuna stores it: local, without a time zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds)


def _parameter(dimensions: Sequence[Dimension], value: Any) -> tuple[Any, BaseDistribution] | None:
    """Return a hyperparameter's value, and a distribution that contains it.

    Return None if the hyperparameter is fixed, or Optuna cannot hold the value. Optuna keeps the kind of a distribution
    and its choices for a whole study, so they follow from all priors that the study has had. Ranges are widened where
    needed, since a known configuration, or one that a population changed, may lie outside.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    searched = [dimension.dimension if isinstance(dimension, Maybe) else dimension for dimension in dimensions]
    choices = {
        identity(value): value for dimension in searched if isinstance(dimension, Choice) for value in dimension.values
    }
    if all(isinstance(dimension, Fixed) for dimension in searched):
        return None
    if all(isinstance(dimension, Choice) for dimension in searched):
        if any(isinstance(dimension, Maybe) for dimension in dimensions):
            choices[identity(None)] = None
        texts = {text: str(value) if isinstance(value, list) else value for text, value in choices.items()}
        text = identity(value)
        return (texts[text], CategoricalDistribution([*texts.values()])) if text in texts else None
    ranges = [dimension for dimension in searched if isinstance(dimension, Range)]
    log = len(ranges) == len(searched) and all(
        isinstance(dimension, Real | Integer) and dimension.log for dimension in ranges
    )
    if isinstance(value, bool) or not isinstance(value, int | float) or (log and value <= 0):
        return None
    low, high = (
        min([value, *(dimension.low for dimension in ranges)]),
        max([value, *(dimension.high for dimension in ranges)]),
    )
    if all(isinstance(dimension, Integer) for dimension in searched):
        return value, IntDistribution(int(low), int(high), log=log)
    return float(value), FloatDistribution(float(low), float(high), log=log)


def _values(objectives: Mapping[str, str], row: Segment) -> list[float]:
    """Return the objectives of a finished segment as they were measured."""
    return [value_of(row.objectives, name) for name in objectives] if objectives != DEFAULT else [score_of(row)]
