"""Commands that steer a study while it runs, stored as rows.

Each records who gave it, when and why. A command is checked and written in one transaction that locks the study's row:
of two conflicting commands the second is refused, and a plan is written only if it takes every command into account.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import CommandRefused
from ..failures import HUNG
from ..options.study_options import BOUNDS
from ..redact import masked
from ..shell import command_line
from .rows import EXCLUDED, Trial
from .sql.schema import Now, command, segment, task, trial
from .studies import finish_trials, get_study, revise, seeds_of, trials

STOP, PAUSE, RESUME = "stop", "pause", "resume"
CANCEL, EXCLUDE, ENQUEUE, EXTEND = "cancel", "exclude", "enqueue", "extend"
BOUND, CHECK = "bound", "check"  # changes a bound of the study; records the test of a result against the goal
PROBE = "probe"  # asks for a look at the environment, or tells what was found
WEIGHT = "weight"  # changes the study's share of the workers
CODE = "code"  # goes on with other files
ASKED, BEGUN, ENDED, FOUND, LOST = "asked", "begun", "ended", "found", "lost"  # keys of a probe's data
PROCESS = "process"  # key beside BEGUN
DECISIVE = (CANCEL, EXCLUDE, ENQUEUE, EXTEND)  # commands on which later decisions depend
CANCELLED, ENQUEUED = "cancelled", "enqueued"  # a trial's state, and a key of its attributes


@dataclass(frozen=True)
class Command:
    """A command about a study.

    Attributes:
        number: index among the study's commands.
        kind: stop, pause, resume, cancel, exclude, enqueue, extend, bound, check, probe, weight or code.
        data: arguments, such as trial numbers.
        who: user and machine, or the bound that was reached.
        why: reason given by the user.
        created: Unix time in seconds.
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
    """Return the commands of a study, in order."""
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


def stored_options(connection: Connection, name: str) -> dict[str, Any]:
    """Return a study's options; studies of old versions have none."""
    return dict(stored_config(connection, name).get("options") or {})


def pending(history: Sequence[Command], rows: Iterable[Trial]) -> list[Command]:
    """Return the enqueue commands that no trial has taken yet."""
    numbers = {row.attrs[ENQUEUED] for row in rows if ENQUEUED in row.attrs}
    return [command for command in history if command.kind == ENQUEUE and command.number not in numbers]


def awaits_probe(history: Iterable[Command]) -> bool:
    """Return whether a probe is requested, but has not ended."""
    probes = [command.data for command in history if command.kind == PROBE]
    return bool(probes) and not any(FOUND in data or LOST in data for data in probes)


def note_hung_probe(connection: Connection, process: str, text: str) -> None:
    """Note that a process hangs which probes an environment."""
    for study, data in connection.execute(sa.select(command.c.study, command.c.data).where(command.c.kind == PROBE)):
        if data.get(PROCESS) == process and awaits_probe(commands(connection, study)):
            revise(connection, study)
            add(connection, study, PROBE, {HUNG: text}, PROBE, "")


def hold_of(history: Sequence[Command]) -> Command | None:
    """Return the command that holds a study, None while it runs.

    Such a command stops or pauses the study.
    """
    last = next((command for command in reversed(history) if command.kind in (STOP, PAUSE, RESUME)), None)
    return None if last is None or last.kind == RESUME else last


def cure_of(name: str, holding: Command) -> str:
    """Return how to resume a stopped or paused study."""
    if holding.who in BOUNDS and holding.who in holding.data:
        return f"`{command_line('extend', name, f'--{holding.who} MORE')}` (or off) continues it"
    return f"`{command_line('resume', name)}` continues it"


def add(connection: Connection, name: str, verb: str, data: Mapping[str, Any], who: str, why: str) -> Command:
    """Add a command to a study, in a transaction that revises it."""
    values: dict[str, Any] = {"kind": verb, "data": dict(data), "who": who, "why": masked(why)}
    new = command.insert().values(study=name, number=count(connection, name), created=Now(), **values)
    row = connection.execute(new.returning(command.c.number, command.c.created)).one()
    return Command(number=row.number, created=row.created, **values)


def hold(connection: Connection, name: str, verb: str, who: str, why: str, data: Mapping[str, Any] = {}) -> Command:
    """Stop, pause or resume a study.

    Raises:
        CommandRefused: the study is already stopped, paused or running.
    """
    revise(connection, name)
    now = hold_of(commands(connection, name))
    if verb == RESUME and now is None:
        raise CommandRefused(f"only a stopped or paused study can be resumed, but {name!r} is neither")
    if now is not None and (verb == now.kind or now.kind == STOP != RESUME != verb):
        raise CommandRefused(f"study {name!r} is held already, by the {now}; {cure_of(name, now)}")
    return add(connection, name, verb, data, who, why)


def cancel(
    connection: Connection, name: str, numbers: Collection[int], who: str, why: str, *, forget: bool = False
) -> Command:
    """End running trials and free their workers.

    With ``forget`` the trials are excluded: they may have ended, samplers and schedulers ignore their scores, and all
    readers read the study's rows again.

    Raises:
        CommandRefused: a trial does not exist, has ended (unless ``forget``), or all are excluded already.
    """
    seeds = seeds_of(connection, name)  # a trial has the number that `rekindle trials` shows
    label = f"trial {', '.join(map(str, sorted({number // seeds for number in numbers})))} of study {name!r}"
    uids = sorted({row.uid for row in trials(connection, name, of=numbers) if row.state == "running"})
    free = {"lease_owner": None, "lease_epoch": task.c.lease_epoch + 1, "lease_expires": Now()}
    for uid in uids:  # lock tasks before the study, as all writers do, to avoid deadlocks
        connection.execute(task.update().where(task.c.uid == uid, task.c.lease_owner.is_not(None)).values(**free))
    revision = revise(connection, name, rewrite=forget)
    rows = trials(connection, name, of=numbers)
    if len(rows) < len(numbers):
        raise CommandRefused(f"there is no {label}; `{command_line('trials', name)}` shows them")
    running = [row.number for row in rows if row.state == "running"]
    if not running and not forget:
        raise CommandRefused(f"only a running trial can be cancelled, but {label} is {rows[0].state}; exclude it")
    if forget and all(row.excluded for row in rows):
        raise CommandRefused(f"{label} is excluded already")
    command = add(connection, name, EXCLUDE if forget else CANCEL, {"trials": sorted(numbers)}, who, why)
    clause = (segment.c.study == name) & segment.c.number.in_(running) & (segment.c.state == "ready")
    connection.execute(segment.update().where(clause).values(state="failed", revision=revision))
    finish_trials(connection, name, running, CANCELLED, str(command), revision)
    for row in rows if forget else ():
        of = (trial.c.study == name) & (trial.c.number == row.number)
        attrs = {**row.attrs, EXCLUDED: command.number}
        connection.execute(trial.update().where(of).values(attrs=attrs, revision=revision))
    return command
