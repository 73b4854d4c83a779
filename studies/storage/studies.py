"""Studies, trials and segments as rows.

Rows are added only if absent and finished only once, so workers that plan or finish the same things at the same time
agree without communication.

Every write to a study's rows is a revision of the study, and the rows written carry its number. A writer locks the
study's row until its transaction ends, so revisions become visible in order: a reader that has seen one revision only
needs rows with a later one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import DamagedRow, ResultMismatch, StudyMismatch, StudyReplaced, UnknownStudy
from ..redact import masked
from .rows import Changes, Result, Segment, Study, Trial
from .sql.schema import Now, segment, study, trial
from .sql.writes import chunks, insert, rows_with

_STUDY = (study.c.name, study.c.config, study.c.created)
TRIAL_STATES = ("running", "complete", "pruned", "failed", "cancelled")
SEGMENT_STATES = ("ready", "done", "failed")
LONGEST_SHOWN = 100  # characters of a value in an error
_ABSENT: Any = object()


def change_study(
    connection: Connection, name: str, change: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
) -> Study:
    """Store the configuration that ``change`` returns, and return the study.

    ``change`` receives the stored configuration, or None for a study that this creates.
    """
    if connection.execute(sa.select(study.c.name).where(study.c.name == name).with_for_update()).one_or_none() is None:
        new = insert(connection, study).values(name=name, config=dict(change(None)), created=Now())
        connection.execute(new.on_conflict_do_nothing())
    return change_config(connection, name, change)


def change_config(connection: Connection, name: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Study:
    """Change the configuration of an existing study, and return the study.

    The study is locked until the transaction ends, so of two concurrent changes the second starts from the result of
    the first.

    Raises:
        UnknownStudy: it was deleted.
    """
    row = connection.execute(sa.select(*_STUDY).where(study.c.name == name).with_for_update()).one_or_none()
    if row is None:
        raise _unknown(connection, name)
    stored = Study(*row)
    config = dict(change(stored.config))
    if stored.config != config:
        values = {"config": config, "revision": study.c.revision + 1}
        connection.execute(study.update().where(study.c.name == name).values(**values))
    return Study(name, config, stored.created)


def check_same(name: str, stored: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise StudyMismatch if two configurations of a study differ.

    The error lists the differences by dotted keys.
    """
    differing = sorted(_differences(stored, config), key=lambda item: ("." in item[0], item[0]))  # task first
    if differing:
        text = ", ".join(f"{key} ({_shown(before)}, now {_shown(now)})" for key, before, now in differing[:5])
        text += f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise StudyMismatch(
            f"a study keeps its configuration, but {name!r} differs in {text}; use the stored values, or another "
            "name for a new study (--study)"
        )


def _differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs: its dotted key, and both values, or _ABSENT."""
    if isinstance(before, Mapping) or isinstance(now, Mapping):
        one, other = ({} if value is _ABSENT else value for value in (before, now))  # an empty one is as none
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            for name in one.keys() | other.keys():
                path = f"{key}.{name}" if key else name
                yield from _differences(one.get(name, _ABSENT), other.get(name, _ABSENT), path)
            return
    if _are_alike(before, now):
        for index, pair in enumerate(zip(before, now, strict=True)):
            yield from _differences(*pair, f"{key}[{index}]")
    elif before != now:
        yield key, before, now


def _are_alike(*lists: Any) -> bool:
    """Return whether these are lists of as many dicts."""
    are_lists = all(isinstance(items, list) and all(isinstance(item, Mapping) for item in items) for items in lists)
    return are_lists and len({len(items) for items in lists}) == 1


def _shown(value: Any) -> str:
    """Return a value as an error shows it."""
    text = "absent" if value is _ABSENT else repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def studies(connection: Connection) -> list[Study]:
    """Return all studies, the oldest first."""
    query = sa.select(*_STUDY).order_by(study.c.created, study.c.name)
    return [Study(*row) for row in connection.execute(query)]


def get_study(connection: Connection, name: str) -> Study:
    """Return one study; UnknownStudy lists those that exist."""
    row = connection.execute(sa.select(*_STUDY).where(study.c.name == name)).one_or_none()
    if row is None:
        raise _unknown(connection, name)
    return Study(*row)


def keep(connection: Connection, name: str) -> None:
    """Lock a study against deletion until this transaction ends.

    Raises:
        UnknownStudy: it is deleted.
    """
    query = sa.select(study.c.name).where(study.c.name == name).with_for_update(read=True, key_share=True)
    if connection.execute(query).one_or_none() is None:
        raise _unknown(connection, name)


def _unknown(connection: Connection, name: str) -> UnknownStudy:
    names = connection.scalars(sa.select(study.c.name).order_by(study.c.name)).all()
    return UnknownStudy(
        f"there is no study {masked(name)!r}; there {'are' if names else 'is'} "
        f"{', '.join(map(repr, names[:10])) or 'none in this storage yet'}"
    )


def revise(connection: Connection, name: str, *, rewrite: bool = False) -> int:
    """Begin a revision of a study in this transaction; return its number.

    Removed rows carry no revision, so after a removal use ``rewrite``: it makes every reader read all rows again.
    """
    following = study.c.revision + 1
    values = {"revision": following, "rewritten": following} if rewrite else {"revision": following}
    query = study.update().where(study.c.name == name).values(**values).returning(study.c.revision)
    revision = connection.execute(query).scalar_one_or_none()
    if revision is None:
        raise _unknown(connection, name)
    return int(revision)


def changes(connection: Connection, name: str, since: int = -1, created: float | None = None) -> Changes | None:
    """Return the changes of a study since a revision, if any.

    Since revision -1, everything has changed.

    Raises:
        UnknownStudy: there is no such study.
        StudyReplaced: the study of this name was not created at the time `created`, so that revisions of that one say
            nothing about it.
    """
    c = study.c
    row = connection.execute(sa.select(c.revision, c.rewritten, c.created).where(c.name == name)).one_or_none()
    if row is None:
        raise _unknown(connection, name)
    if created is not None and row.created != created:
        raise StudyReplaced(f"study {masked(name)!r} was deleted, and another one has its name now; start again")
    if row.revision == since:
        return None
    whole = since < row.rewritten
    after = -1 if whole else since
    config = connection.execute(sa.select(c.config).where(c.name == name)).scalar_one()
    seeds = _seeds(config)
    new_trials = trials(connection, name, after, seeds=seeds)
    new_segments = segments(connection, name, after, seeds=seeds)
    return Changes(row.revision, whole, config, new_trials, new_segments, row.created)


def add_trials(connection: Connection, name: str, new_trials: Iterable[Trial], revision: int) -> None:
    """Add the trials whose numbers are unused."""
    columns = {"study": name, "revision": revision}
    rows = [row.columns() | columns for row in sorted(new_trials, key=lambda row: row.number)]
    if rows:
        new = insert(connection, trial).values(created=Now()).on_conflict_do_nothing()
        connection.execute(new, [{key: row[key] for key in row if key != "created"} for row in rows])


def add_segments(connection: Connection, name: str, new_segments: Iterable[Segment], revision: int) -> None:
    """Add the segments whose (number, rung) is unused."""
    columns = {"study": name, "revision": revision}
    rows = [row.columns() | columns for row in sorted(new_segments, key=lambda row: (row.number, row.rung))]
    if rows:
        connection.execute(insert(connection, segment).on_conflict_do_nothing(), rows)


def _seeds(config: Mapping[str, Any]) -> int:
    """Return the number of replicates per configuration of a study."""
    options = config.get("options")
    seeds = options.get("seeds") if isinstance(options, Mapping) else None
    return seeds if isinstance(seeds, int) and seeds > 0 else 1


def seeds_of(connection: Connection, name: str) -> int:
    """Return the number of replicates per configuration of a study."""
    return _seeds(connection.scalar(sa.select(study.c.config).where(study.c.name == name)) or {})


Row = TypeVar("Row", Trial, Segment)


def read_rows(
    connection: Connection, table: sa.Table, row: type[Row], name: str, after: int = -1, of: Any = None, seeds: int = 0
) -> list[Row]:
    """Return the rows of a study in a table, unchecked; see `trials`."""
    columns = [table.c[field.name] for field in fields(row) if field.name in table.c]
    query = sa.select(*columns).where(table.c.study == name).order_by(*table.primary_key)
    if after >= 0:
        query = query.where(table.c.revision > after)
    if isinstance(of, sa.Select):
        query, of = query.where(table.c.number.in_(of)), None
    rows = connection.execute(query).all() if of is None else rows_with(connection, query, table.c.number, {*of})
    seeds = seeds or seeds_of(connection, name)
    return [row(*columns, seeds=seeds) for columns in rows]


def trials(connection: Connection, name: str, after: int = -1, of: Any = None, seeds: int = 0) -> list[Trial]:
    """Return the trials of a study, by number.

    Only trials after the revision ``since`` are read, with numbers that ``of`` selects. ``seeds`` is the number of
    replicates of each configuration, read if it is 0.
    """
    rows = read_rows(connection, trial, Trial, name, after, of, seeds)
    for row in rows:
        if row.state not in TRIAL_STATES:
            raise _contradictory(f"trial {row.number} of study {name!r}", row.state, None)
    return rows


def segments(connection: Connection, name: str, after: int = -1, of: Any = None, seeds: int = 0) -> list[Segment]:
    """Return the segments of a study, by number and rung.

    Only segments after the revision ``since`` are read, with numbers that ``of`` selects. ``seeds`` is the number of
    replicates of each configuration, read if it is 0.
    """
    rows = read_rows(connection, segment, Segment, name, after, of, seeds)
    for row in rows:
        if row.state not in SEGMENT_STATES or (row.state == "done") != (row.score is not None):
            raise _contradictory(f"segment {row.rung} of trial {row.number} of study {name!r}", row.state, row.score)
    return rows


def _contradictory(name: str, state: str, score: float | None) -> DamagedRow:
    return DamagedRow(
        f"a finished segment has a score and no other has one, but {name} has the state {state[:40]!r} and the score "
        f"{score}; `rekindle fsck --repair` repairs what it can"
    )


def finish_segment(connection: Connection, name: str, result: Result, revision: int) -> None:
    """End a ready segment.

    Repeating the same result changes nothing.

    Raises:
        ResultMismatch: the segment has another result, or does not exist.
        ValueError: the score is NaN.
    """
    label = f"segment {result.rung} of trial {result.number} of study {name!r}"
    if result.score is not None and math.isnan(result.score):
        raise ValueError(f"a score is a number, but {label} got NaN; fail the trial instead")
    clause = sa.and_(segment.c.study == name, segment.c.number == result.number, segment.c.rung == result.rung)
    state, objectives = "failed" if result.score is None else "done", result.objectives and dict(result.objectives)
    values = {"state": state, "score": result.score, "digest": result.digest, "objectives": objectives}
    ready = segment.update().where(clause, segment.c.state == "ready")
    measured = {"eval_steps": result.eval_steps, "eval_error": result.eval_error, "revision": revision}
    if not connection.execute(ready.values(**values, **measured)).rowcount:
        columns = [segment.c[name] for name in values]
        _same_again(label, connection.execute(sa.select(*columns).where(clause)).one_or_none(), values)


def finish_trials(
    connection: Connection, name: str, numbers: Collection[int], state: str, error: str | None, revision: int
) -> None:
    """End running trials.

    Repeating the same state changes nothing. Passwords in the error are masked.

    Raises:
        ResultMismatch: a trial has another final state, or does not exist.
    """
    values = {"state": state, "error": error and masked(error), "finished": Now(), "revision": revision}
    for some in chunks(sorted(set(numbers))):
        clause = sa.and_(trial.c.study == name, trial.c.number.in_(some))
        ended = connection.execute(trial.update().where(clause, trial.c.state == "running").values(**values)).rowcount
        if ended == len(some):
            continue
        rows = {row.number: row for row in connection.execute(sa.select(trial.c.number, trial.c.state).where(clause))}
        for number in some:
            _same_again(f"trial {number} of study {name!r}", rows.get(number), {"state": state})


def reopen_trials(connection: Connection, name: str) -> int:
    """Reopen complete trials; return the revision.

    All readers then read the study's rows again.
    """
    revision = revise(connection, name, rewrite=True)
    clause = (trial.c.study == name) & (trial.c.state == "complete")
    connection.execute(trial.update().where(clause).values(state="running", finished=None, revision=revision))
    return revision


def _same_again(name: str, row: Any, values: dict[str, Any]) -> None:
    if row is None:
        raise ResultMismatch(f"{name} cannot be finished, because it does not exist; add it first")
    before = {key: row._mapping[key] for key in values}
    if before != values:
        raise ResultMismatch(
            f"{name} already has the result {before}, but now got {values}; the first one is kept. Results are equal "
            "on machines of one kind with equal versions of libraries: compare these"
        )


@dataclass(frozen=True)
class Totals:
    """Counts of a study's trials, segments and started brackets.

    Trials are counted by state, segments by (rung, state).
    """

    trials: dict[str, int]
    segments: dict[tuple[int, str], int]
    brackets: int
    eval_steps: int


def totals(connection: Connection, name: str) -> Totals:
    """Count all rows of a study; every replicate counts."""
    count = sa.func.count()
    t, s = trial.c, segment.c
    states = sa.select(t.state, count).where(t.study == name).group_by(t.state)
    rungs = sa.select(s.rung, s.state, count).where(s.study == name).group_by(s.rung, s.state)
    last = sa.select(t.attrs).where(t.study == name).order_by(t.number.desc()).limit(1)
    attrs = connection.scalar(last)
    return Totals(
        {row[0]: row[1] for row in connection.execute(states)},
        {(row[0], row[1]): row[2] for row in connection.execute(rungs)},
        0 if attrs is None else int(attrs.get("bracket", 0)) + 1,
        int(connection.scalar(sa.select(sa.func.sum(s.eval_steps)).where(s.study == name)) or 0),
    )


def longest(connection: Connection, name: str, *, best: bool = False) -> list[tuple[Trial, list[Segment]]]:
    """Return the trials that trained longest, with all their segments.

    Only trials with a result count. With ``best``, only those with the highest score: several if tied.
    """
    s = segment.c
    done = (s.study == name) & (s.state == "done")
    top = done & (s.epochs == sa.select(sa.func.max(s.epochs)).where(done).scalar_subquery())
    if best:
        top &= s.score == sa.select(sa.func.max(s.score)).where(top).scalar_subquery()
    numbers = sa.select(s.number).where(top)
    rows: dict[int, list[Segment]] = {}
    for row in segments(connection, name, of=numbers):
        rows.setdefault(row.number, []).append(row)
    return [(row, rows[row.number]) for row in trials(connection, name, of=numbers)]
