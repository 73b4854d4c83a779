"""Copy of a study in Optuna's own tables, for its dashboard.

Rekindle writes the copy and never reads a result from it. Trial n of the study is trial n of the copy. Only one process
copies at a time: the one that holds the lease of the mirror.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import make_url

from ...spaces.choices import Choice, Fixed
from ...spaces.ranges import Integer, Range, Real
from ..errors import StoreError, TaskBusy
from ..schedulers.confirming import CONFIRM
from ..schedulers.registry import remembered
from ..schedulers.seeds import collapse, seeds_of
from ..storage.commands import EXCLUDED
from ..storage.rows import Segment, Trial, score_of
from ..storage.store import MIRROR
from ..study.config import Config
from ..study.environments import is_across, scale_of
from ..study.objectives import DEFAULT, objectives_of, value_of
from .study_rows import StudyRows

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage
    from optuna.study import Study as OptunaStudy
    from optuna.trial import FrozenTrial

    from ...spaces.dimension import Dimension
    from ..storage.locks.leases import StoreLease
    from ..storage.store import Store

MARK = "rekindle"  # user attribute that marks a study in Optuna's tables as a copy
FORM = "rekindle_form"  # user attribute with the version of the copy's layout; a copy of another version is rebuilt
VERSION = 2
MAKING = 1.0  # seconds to wait while another process creates Optuna's tables
Row = tuple[Trial, list[Segment], dict[int, float]]  # a trial, its segments and its objective by epoch


class MirrorError(StoreError):
    """Optuna's tables already hold another study of this name."""


def mirror(store: Store, url: str, name: str) -> int:
    """Copy what is new, and return the number of trials that changed.

    Nothing is copied while another process copies.
    """
    with Mirror(store, url, name) as copy:
        return copy.update()


class Mirror:
    """A copy of a study that `update` brings up to date.

    A confirmation is not copied: its candidates have different numbers of seeds, and Optuna would rank them all the
    same.
    """

    def __init__(self, store: Store, url: str, name: str):
        self.store, self.url, self.name = store, url, name
        self.rows = StudyRows(store, name)
        self._ending = ExitStack()
        self._lease: StoreLease | None = None
        self._study: OptunaStudy | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._ending.close()

    def update(self) -> int:
        """Copy what is new, and return the number of trials that changed.

        Raises:
            StoreError: Optuna could not write its tables.
        """
        import optuna

        from ..samplers.suggest import quiet

        self.rows.refresh()
        if self.rows.config.scheduler == CONFIRM or not self._hold():
            return 0
        assert self._lease is not None
        with quiet(optuna.logging.WARNING):
            try:
                self._study = self._study or self._open()
                self._lease.check()
                return sum(self._copy(row) for row in self._changed(self._study))
            except optuna.exceptions.StorageInternalError as error:  # a full disk, for example
                raise StoreError(f"Optuna's tables of study {self.name!r} cannot be written: {error}") from error

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
        storage = _storage(_with_driver(self.url))
        self._ending.callback(storage.engine.dispose)
        self._ending.callback(storage.remove_session)
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
        form = [VERSION, *config.options.get("longer", ())]  # a study with more epochs reopens complete trials
        if is_across(config):  # the scale of several environments changes with their results
            form += [*map(list, scale_of(config, rows))]
        form += [f"without {trial.number}" for trial in trials if EXCLUDED in trial.attrs]  # it may be complete
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
        copies = study.get_trials(deepcopy=False)
        trials = sorted(trials, key=lambda trial: trial.number)
        trials = [trial for number, trial in enumerate(trials) if trial.number == number]  # up to the first gap
        open_trials = [trial for trial in trials if trial.number >= len(copies) or not _is_over(copies[trial.number])]
        rows: dict[int, list[Segment]] = {}
        for row in sorted(segments, key=lambda row: row.rung):
            rows.setdefault(row.number, []).append(row)
        started = self.store.started([trial.uid for trial in open_trials])
        curves = self._curves(open_trials)
        changed = []
        for trial in open_trials:
            copy = copies[trial.number] if trial.number < len(copies) else None
            now = frozen(config, (trial, rows.get(trial.number, []), curves.get(trial.uid, {})), started.get(trial.uid))
            if copy is None or _shown(copy) != _shown(now):
                changed.append((copy, now))
        return changed

    def _curves(self, trials: Sequence[Trial]) -> dict[str, dict[int, float]]:
        """Return the objective by epoch, by uid.

        Return nothing for a study of several objectives or seeds.
        """
        [name, *others] = objectives_of(self.rows.config)
        if others or seeds_of(self.rows.config) > 1:
            return {}
        found = self.store.metrics_after({trial.uid: 0 for trial in trials})
        return {uid: {epoch: row[name] for epoch, row in rows if name in row} for uid, rows in found.items()}

    def _copy(self, row: tuple[FrozenTrial | None, FrozenTrial]) -> bool:
        """Write one trial."""
        import sqlalchemy as sa
        from optuna.trial import TrialState

        assert self._study is not None
        copy, now = row
        storage = self._study._storage
        if copy is None:
            storage.create_new_trial(self._study._study_id, now)
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
        if now.state.is_finished():
            storage.set_trial_state_values(trial, now.state, now.values)
        times = {"start": now.datetime_start, "end": now.datetime_complete}  # Optuna writes the present
        with self._engine().begin() as connection:
            statement = "UPDATE trials SET datetime_start = :start, datetime_complete = :end WHERE trial_id = :trial"
            typed = sa.text(statement).bindparams(sa.bindparam("start", type_=sa.DateTime))
            typed = typed.bindparams(sa.bindparam("end", type_=sa.DateTime))
            connection.execute(typed, {**times, "trial": trial})
        return True

    def _engine(self) -> Any:
        assert self._study is not None
        return self._study._storage._backend.engine  # type: ignore[attr-defined]


def _is_over(copy: FrozenTrial) -> bool:
    return copy.state.is_finished()


def _shown(trial: FrozenTrial) -> tuple[object, ...]:
    """Return the parts of a trial that may change."""
    return trial.state, trial.intermediate_values, trial.user_attrs


def forget(store: Store, name: str) -> None:
    """Delete the copy of a study from Optuna's tables."""
    import sqlalchemy as sa

    url = _with_driver(store.database.url.render_as_string(hide_password=False))
    if not store.database.read(lambda connection: sa.inspect(connection).has_table("studies")):
        return
    with ExitStack() as ending:
        storage = _storage(url)
        ending.callback(storage.engine.dispose)
        ending.callback(storage.remove_session)
        try:
            copy = storage.get_study_id_from_name(name)
        except KeyError:
            return
        if MARK in storage.get_study_user_attrs(copy):
            storage.delete_study(copy)


def _storage(url: str) -> RDBStorage:
    """Return Optuna's storage; its tables are created if missing."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return optuna.storages.RDBStorage(url)
    except SQLAlchemyError:  # another process is creating the tables right now, which Optuna does not handle
        time.sleep(MAKING)
        return optuna.storages.RDBStorage(url)


def _with_driver(url: str) -> str:
    """Return the URL with psycopg 3, the installed PostgreSQL driver."""
    parsed = make_url(url)
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)


def frozen(config: Config, row: Row, started: float | None) -> FrozenTrial:
    """Return a trial in Optuna's form.

    Args:
        config: configuration of the study.
        row: the trial.
        started: when its training began; None if it has not.
    """
    from optuna.trial import TrialState, create_trial

    trial, segments, curve = row
    ends = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
    ends["cancelled"] = TrialState.FAIL
    waiting = TrialState.WAITING if started is None else TrialState.RUNNING
    state = TrialState.FAIL if EXCLUDED in trial.attrs else ends.get(trial.state, waiting)
    done = [row for row in segments if row.state == "done"]
    objectives = objectives_of(config)
    # Optuna has intermediate values of one objective only.
    measured = {row.epochs: _values(objectives, row)[0] for row in done if len(objectives) == 1}
    last = max((row.epochs - (row.state == "ready") for row in segments), default=0)  # another study may train further
    measured = {epoch: value for epoch, value in curve.items() if epoch <= last} | measured
    values, distributions = {}, {}
    for name, dimension in config.searched.flat().items():
        if name in trial.params and (found := _parameter(dimension, trial.params[name])) is not None:
            values[name], distributions[name] = found
    made = create_trial(
        state=TrialState.RUNNING,
        params=values,
        distributions=distributions,
        intermediate_values=dict(sorted(measured.items())),
        user_attrs=_attributes(trial, segments, done),
    )
    made.state = state
    if state in (TrialState.COMPLETE, TrialState.PRUNED) and done:
        made.values = _values(objectives, done[-1])
    made.datetime_start = None if state == TrialState.WAITING else _moment(started or trial.created)
    made.datetime_complete = _moment(trial.finished) if state.is_finished() else None
    return made


def _attributes(trial: Trial, segments: Sequence[Segment], done: Sequence[Segment]) -> dict[str, Any]:
    """Return the properties that Optuna has no column for, as user attributes."""
    attributes: dict[str, Any] = {"rk_uid": trial.uid}
    if segments:
        attributes |= {"rk_rung": segments[-1].rung, "rk_epochs_planned": segments[-1].epochs}
    if done:
        attributes["rk_digest"] = done[-1].digest
    if "start" in trial.attrs:
        attributes |= {"rk_parent": trial.attrs["parent"], "rk_parent_epochs": trial.attrs["start"]["epochs"]}
    places = ("bracket", "member", "generation")
    attributes |= {f"rk_{name}": trial.attrs[name] for name in places if name in trial.attrs}
    if trial.state == "cancelled" or EXCLUDED in trial.attrs:  # Optuna has no such states
        attributes["rk_state"] = EXCLUDED if EXCLUDED in trial.attrs else trial.state
    if trial.error:
        attributes["rk_error"] = trial.error.strip().splitlines()[-1][:1000]
    return attributes


def _moment(seconds: float | None) -> datetime | None:
    """Return a time as Optuna stores it: local, without a time zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds)


def _parameter(dimension: Dimension, value: Any) -> tuple[Any, BaseDistribution] | None:
    """Return a hyperparameter's value, and a distribution that contains it.

    Return None if the hyperparameter is fixed, or Optuna cannot hold the value. The distribution is widened where
    needed, since a known configuration, or one that a population changed, may lie outside the range.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Fixed):
        return None
    if isinstance(dimension, Choice):
        plain = (bool, int, float, str, type(None))
        choices = [each if isinstance(each, plain) else str(each) for each in dimension.values]
        shown = value if value in choices else str(value)
        return (shown, CategoricalDistribution(choices)) if shown in choices else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = (dimension.low, dimension.high) if isinstance(dimension, Range) else (value, value)
    low, high, log = min(low, value), max(high, value), isinstance(dimension, Real | Integer) and dimension.log
    if isinstance(dimension, Integer):
        return value, IntDistribution(int(low), int(high), log=log)
    return float(value), FloatDistribution(float(low), float(high), log=log and low > 0)


def _values(objectives: Mapping[str, str], row: Segment) -> list[float]:
    """Return the objectives of a finished segment as they were measured."""
    return [value_of(row.objectives, name) for name in objectives] if objectives != DEFAULT else [score_of(row)]
