"""Commands that steer a study while it runs, as rows.

Each says who gave it, when and why. A command is checked and written in one transaction that holds the study's row, so
of two that exclude each other the second is refused, and a plan is written only if it took every command into account.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import CommandRefused
from ..redact import masked
from .rows import Trial
from .sql.schema import Now, command, segment, task, trial
from .studies import finish_trials, get_study, revise, trials

STOP, PAUSE, RESUME = "stop", "pause", "resume"
CANCEL, EXCLUDE, ENQUEUE, EXTEND = "cancel", "exclude", "enqueue", "extend"
BOUND, CHECK = "bound", "check"  # a bound of the study is changed; a result is tested against its goal
WEIGHT = "weight"  # the study's share of workers is changed
BOUNDS = ("budget", "goal", "plateau")  # of a study, as the options that set them
DECISIVE = (CANCEL, EXCLUDE, ENQUEUE, EXTEND)  # what later decisions depend on
CANCELLED, EXCLUDED, ENQUEUED = "cancelled", "excluded", "enqueued"  # the state of a trial, and attributes of trials


@dataclass(frozen=True)
class Command:
    """A command about a study.

    Attributes:
        number: its place among the study's commands.
        kind: one of those above.
        data: what it is about, such as trials.
        who: user and machine, or the bound of a study that was reached.
        why: in the user's words.
        created: seconds since 1970.
    """

    number: int
    kind: str
    data: dict[str, Any]
    who: str
    why: str
    created: float

    def to_json(self) -> dict[str, Any]:
        """Return the command as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.kind} by {self.who}" + (f": {self.why}" if self.why else "")


def commands(connection: Connection, name: str) -> list[Command]:
    """Return the commands of a study, in their order."""
    columns = [column for column in command.c if column.name != "study"]
    query = sa.select(*columns).where(command.c.study == name).order_by(command.c.number)
    return [Command(**row._mapping) for row in connection.execute(query)]


def count(connection: Connection, name: str) -> int:
    """Return the number of commands of a study."""
    query = sa.select(sa.func.count()).select_from(command).where(command.c.study == name)
    return connection.scalar(query) or 0


def stored_config(connection: Connection, name: str) -> dict[str, Any]:
    """Return the JSON of a study's configuration."""
    return get_study(connection, name).config


def pending(given: Sequence[Command], rows: Iterable[Trial]) -> list[Command]:
    """Return the enqueued configurations that no trial has taken."""
    taken = {row.attrs[ENQUEUED] for row in rows if ENQUEUED in row.attrs}
    return [each for each in given if each.kind == ENQUEUE and each.number not in taken]


def hold_of(given: Sequence[Command]) -> Command | None:
    """Return the command that holds a study, None while it runs."""
    last = next((each for each in reversed(given) if each.kind in (STOP, PAUSE, RESUME)), None)
    return None if last is None or last.kind == RESUME else last


def cure_of(name: str, held: Command) -> str:
    """Return how a study that was stopped or paused is resumed."""
    if held.who in BOUNDS and held.who in held.data:
        return f"`rekindle extend {name} --{held.who} MORE` (or off) continues it"
    return f"`rekindle resume {name}` continues it"


def add(connection: Connection, name: str, kind: str, data: Mapping[str, Any], who: str, why: str) -> Command:
    """Add a command within a revision of the study."""
    values: dict[str, Any] = {"kind": kind, "data": dict(data), "who": who, "why": masked(why)}
    new = command.insert().values(study=name, number=count(connection, name), created=Now(), **values)
    row = connection.execute(new.returning(command.c.number, command.c.created)).one()
    return Command(number=row.number, created=row.created, **values)


def hold(connection: Connection, name: str, kind: str, who: str, why: str, data: Mapping[str, Any] = {}) -> Command:
    """Stop, pause or resume a study.

    Raises:
        CommandRefused: it is stopped, paused or running already.
    """
    revise(connection, name)
    now = hold_of(commands(connection, name))
    if kind == RESUME and now is None:
        raise CommandRefused(f"resume continues what is stopped or paused, but study {name!r} is neither")
    if now is not None and (kind == now.kind or now.kind == STOP != RESUME != kind):
        raise CommandRefused(f"a study is stopped or paused once, but {name!r} had the {now}; {cure_of(name, now)}")
    return add(connection, name, kind, data, who, why)


def cancel(
    connection: Connection, name: str, numbers: Collection[int], who: str, why: str, *, forget: bool = False
) -> Command:
    """End trials that run, and free their workers.

    With ``forget`` the trials may be over, and samplers and schedulers lose their scores: readers read all rows again.

    Raises:
        CommandRefused: a trial does not exist, is over, or is forgotten already.
    """
    label = f"trial {', '.join(map(str, sorted(numbers)))} of study {name!r}"
    uids = sorted({row.uid for row in trials(connection, name, of=numbers) if row.state == "running"})
    free = {"lease_owner": None, "lease_epoch": task.c.lease_epoch + 1, "lease_expires": Now()}
    for uid in uids:  # tasks before the study, as all writers do
        connection.execute(task.update().where(task.c.uid == uid, task.c.lease_owner.is_not(None)).values(**free))
    revision = revise(connection, name, rewrite=forget)
    rows = trials(connection, name, of=numbers)
    if len(rows) < len(numbers):
        raise CommandRefused(f"there is no {label}; `rekindle trials {name}` shows them")
    running = [row.number for row in rows if row.state == "running"]
    if not running and not forget:
        raise CommandRefused(f"only a trial that runs can be cancelled, but {label} is {rows[0].state}; exclude it")
    if forget and all(EXCLUDED in row.attrs for row in rows):
        raise CommandRefused(f"a trial is excluded once, but {label} is so already")
    given = add(connection, name, EXCLUDE if forget else CANCEL, {"trials": sorted(numbers)}, who, why)
    which = (segment.c.study == name) & segment.c.number.in_(running) & (segment.c.state == "ready")
    connection.execute(segment.update().where(which).values(state="failed", revision=revision))
    finish_trials(connection, name, running, CANCELLED, str(given), revision)
    for row in rows if forget else ():
        of = (trial.c.study == name) & (trial.c.number == row.number)
        attrs = {**row.attrs, EXCLUDED: given.number}
        connection.execute(trial.update().where(of).values(attrs=attrs, revision=revision))
    return given
