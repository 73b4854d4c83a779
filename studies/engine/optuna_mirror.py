"""Copy of a study's finished trials in Optuna's own tables.

Rekindle writes the copy and never reads it. Trial n of the study is trial n of the copy, so trials are added in order,
each once all trials before it are finished, by the one process that holds the lease of the mirror.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sqlalchemy import make_url

from ..errors import StoreError, TaskBusy
from ..schedulers.confirming import CONFIRM
from ..schedulers.seeds import collapse
from ..storage.rows import Segment, Trial, score_of
from ..storage.store import MIRROR
from ..study.config import Config
from ..study.objectives import DEFAULT, objectives_of, value_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from ..storage.store import Store

MARK = "rekindle"  # user attribute that marks a study in Optuna's tables as a copy


class MirrorError(StoreError):
    """Optuna's tables hold another study of the same name."""


def mirror(store: Store, url: str, name: str) -> int:
    """Copy new trials, and return their number; 0 while another process copies.

    A confirmation is not copied: its candidates have different numbers of seeds, which Optuna would rank.
    """
    import optuna
    from optuna.study import StudyDirection

    from ..samplers.suggest import quiet

    config = Config.from_json(store.study(name).config, name)
    if config.scheduler == CONFIRM:
        return 0
    try:
        lease = store.open(MIRROR + name, {"mirror": name})
    except TaskBusy:
        return 0
    with lease, quiet(optuna.logging.WARNING), ExitStack() as ending:
        storage = optuna.storages.RDBStorage(_with_driver(url))
        ending.callback(storage.engine.dispose)
        ending.callback(storage.remove_session)
        trials = finished(config, *collapse(config, store.trials(name), store.segments(name)))
        directions = [StudyDirection[direction.upper()] for direction in objectives_of(config).values()]
        study = optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
        copied = len(study.get_trials(deepcopy=False))
        if not copied:
            study.set_user_attr(MARK, config.to_json())
        elif MARK not in study.user_attrs:
            raise MirrorError(f"study {name!r} cannot be shown in Optuna's tables: they hold another one of that name")
        lease.check()
        study.add_trials(trials[copied:])
        return len(trials[copied:])


def forget(store: Store, name: str) -> None:
    """Delete the copy of a study from Optuna's tables."""
    import optuna
    import sqlalchemy as sa

    url = _with_driver(store.database.url.render_as_string(hide_password=False))
    if not store.database.read(lambda connection: sa.inspect(connection).has_table("studies")):
        return
    with ExitStack() as ending:
        storage = optuna.storages.RDBStorage(url)
        ending.callback(storage.engine.dispose)
        ending.callback(storage.remove_session)
        try:
            copy = storage.get_study_id_from_name(name)
        except KeyError:
            return
        if MARK in storage.get_study_user_attrs(copy):
            storage.delete_study(copy)


def _with_driver(url: str) -> str:
    """Return the URL with psycopg 3, the installed PostgreSQL driver."""
    parsed = make_url(url)
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)


def finished(config: Config, trials: Sequence[Trial], segments: Sequence[Segment]) -> list[FrozenTrial]:
    """Return the trials before the first unfinished one in Optuna's form."""
    from optuna.trial import TrialState, create_trial

    from ...spaces.drivers.to_optuna import distributions, params

    states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
    states["cancelled"] = TrialState.FAIL
    spread = distributions(config.searched)
    names = config.searched.flat().keys()
    objectives = objectives_of(config)
    frozen = []
    for trial in trials:
        if trial.state not in states:
            break
        done = [row for row in segments if row.number == trial.number and row.state == "done"]
        values = params(config.searched, {name: value for name, value in trial.params.items() if name in names})
        frozen.append(
            create_trial(
                state=states[trial.state],
                values=_values(objectives, done[-1]) if states[trial.state] != TrialState.FAIL and done else None,
                params=values,
                distributions={name: spread[name] for name in values},
                # Optuna has intermediate values of one objective only.
                intermediate_values={row.epochs: _values(objectives, row)[0] for row in done if len(objectives) == 1},
                user_attrs={"rk_uid": trial.uid, **({"rk_digest": done[-1].digest} if done else {})},
            )
        )
    return frozen


def _values(objectives: Mapping[str, str], row: Segment) -> list[float]:
    """Return the objectives of a finished segment as they were measured."""
    return [value_of(row.objectives, name) for name in objectives] if objectives != DEFAULT else [score_of(row)]
