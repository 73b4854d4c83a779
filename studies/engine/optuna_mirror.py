"""A study's finished trials in Optuna's own tables of the same database, for its dashboard and all that reads them.

The mirror is written, never read. Trial n of the study is trial n of the mirror, so trials are added in their order,
each once all before it are finished, by one process at a time: the one that holds the mirror's lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import make_url

from ..errors import StoreError, TaskBusy
from ..schedulers.seeds import collapse
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.objectives import DEFAULT, objectives_of, value_of

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from ..storage.store import Store

UID = "mirror/"  # and the study's name: under which the mirror's lease is taken
MARK = "rekindle"  # the user attribute that says that a study of Optuna's is a mirror


class MirrorError(StoreError):
    """Optuna's tables hold a study of the same name that is somebody else's."""


def mirror(store: Store, url: str, name: str) -> int:
    """Adds what is not mirrored yet; how many trials that were. 0 if another process is at it."""
    import optuna
    from optuna.study import StudyDirection

    try:
        lease = store.open(UID + name, {"mirror": name})
    except TaskBusy:
        return 0
    with lease:
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            config = Config.from_json(store.study(name).config, name)
            trials = finished(config, *collapse(config, store.trials(name), store.segments(name)))
            directions = [StudyDirection[direction.upper()] for direction in objectives_of(config).values()]
            study = optuna.create_study(
                storage=_with_driver(url), study_name=name, directions=directions, load_if_exists=True
            )
            there = len(study.get_trials(deepcopy=False))
            if not there:
                study.set_user_attr(MARK, config.to_json())
            elif MARK not in study.user_attrs:
                raise MirrorError(
                    f"study {name!r} cannot be shown in Optuna's tables: they hold another one of that name"
                )
            lease.check()
            study.add_trials(trials[there:])
            return len(trials[there:])
        finally:
            optuna.logging.set_verbosity(before)


def _with_driver(url: str) -> str:
    """The URL as SQLAlchemy needs it, whatever its version takes for granted; Rekindle brings psycopg 3 only."""
    parsed = make_url(url)
    if parsed.get_backend_name() in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)


def finished(config: Config, trials: Sequence[Trial], segments: Sequence[Segment]) -> list[FrozenTrial]:
    """The trials up to the first one that is not finished, as Optuna's."""
    from optuna.trial import TrialState, create_trial

    from ...spaces.drivers.to_optuna import distributions, params

    states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
    spread = distributions(config.searched)
    known = config.searched.flat().keys()
    objectives = objectives_of(config)
    frozen = []
    for trial in trials:
        if trial.state not in states:
            break
        done = [row for row in segments if row.number == trial.number and row.state == "done"]
        names = params(config.searched, {name: value for name, value in trial.params.items() if name in known})
        frozen.append(
            create_trial(
                state=states[trial.state],
                values=_values(objectives, done[-1]) if trial.state != "failed" and done else None,
                params=names,
                distributions={name: spread[name] for name in names},
                # Optuna shows the way to a value, and has no ways to several.
                intermediate_values={row.epochs: _values(objectives, row)[0] for row in done if len(objectives) == 1},
                user_attrs={"rk_uid": trial.uid, **({"rk_digest": done[-1].digest} if done else {})},
            )
        )
    return frozen


def _values(objectives: Mapping[str, str], row: Segment) -> list[float]:
    """The objectives of a finished segment, as they were measured."""
    return [value_of(row.objectives, name) for name in objectives] if objectives != DEFAULT else [score_of(row)]
