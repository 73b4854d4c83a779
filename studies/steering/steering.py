"""Commands about a study, checked against its configuration.

    steering = Steering(store, "cartpole", who="ana@laptop")
    steering.cancel([3], why="diverges")

A study that was steered follows from its rows: suggested trials name how many commands were known then, an excluded
trial has no score for what is decided later, and an enqueued configuration names the command that asked for it.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..engine.bounds import is_lifted, resume_if_lifted
from ..engine.configs import load_task
from ..engine.configuring import check_bounds
from ..errors import CommandRefused
from ..samplers.registry import KNOWN, check_exhausted, check_sampler
from ..schedulers.confirming import CONFIRM
from ..schedulers.seeds import seeds_of
from ..storage import commands
from ..storage.commands import BOUND, BOUNDS, ENQUEUE, EXTEND, PAUSE, RESUME, STOP, WEIGHT, Command, hold_of
from ..storage.studies import change_study, revise, trials
from ..study.config import Config, check_count, parse_budget, parse_goal, parse_plateau, parse_weight
from ..study.searched import known_values
from . import extensions

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ..storage.store import Store


Change = tuple[str, dict[str, Any], Callable[["Connection"], object]]  # the command's kind and data, and what it does


def whoever() -> str:
    """Return the user and the machine of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


class Steering:
    """Commands about one study.

    Args:
        store: holds it.
        study: its name.
        who: gives the commands; by default the user and the machine.
    """

    def __init__(self, store: Store, study: str, who: str | None = None):
        self.store, self.study, self.who = store, study, who or whoever()
        self.config = Config.from_json(store.study(study).config, study)

    def stop(self, why: str = "") -> Command:
        """Let all workers save and end."""
        return self._hold(STOP, why)

    def pause(self, why: str = "") -> Command:
        """Let all workers save and wait."""
        return self._hold(PAUSE, why)

    def resume(self, why: str = "") -> Command:
        """Resume what was stopped or paused."""
        return self._hold(RESUME, why)

    def _hold(self, kind: str, why: str) -> Command:
        def work(connection: Connection) -> Command:
            given = commands.hold(connection, self.study, kind, self.who, why)  # locks the study
            held = hold_of([row for row in commands.commands(connection, self.study) if row.number < given.number])
            options = commands.stored_options(connection, self.study)
            if kind == RESUME and held and held.who in BOUNDS and not is_lifted(held.who, held.data, options):
                raise CommandRefused(
                    f"resume continues what a user has stopped, but study {self.study!r} had the {held}; "
                    f"{commands.cure_of(self.study, held)}"
                )
            return given

        return self.store.command(work)

    def cancel(self, trial: int | str, why: str = "") -> Command:
        """End a trial that runs; its worker is free within one epoch.

        Args:
            trial: its number, or the uid of its task or a prefix.
            why: in the user's words.

        Raises:
            CommandRefused: there is no such trial, or it is over.
        """
        numbers = self._numbers(trial)
        return self.store.command(lambda c: commands.cancel(c, self.study, numbers, self.who, why))

    def exclude(self, trial: int | str, why: str = "") -> Command:
        """Let samplers and schedulers forget a trial; end it if it runs.

        Args:
            trial: its number, or the uid of its task or a prefix.
            why: in the user's words.

        Raises:
            CommandRefused: there is no such trial, or it is excluded already.
        """
        self._only_of_searches("exclude", "pbt")
        numbers = self._numbers(trial)
        return self.store.command(lambda c: commands.cancel(c, self.study, numbers, self.who, why, forget=True))

    def enqueue(self, hyperparameters: Mapping[str, Any], why: str = "") -> Command:
        """Try known hyperparameters next.

        If as many trials as are left wait already, the study gets one more.

        Args:
            hyperparameters: by dotted name; the others have their defaults.
            why: in the user's words.

        Raises:
            CommandRefused: the study chooses its hyperparameters otherwise.
            BadConfig: they are not in the searched space.
        """
        self._only_of_searches("enqueue", "pbt")
        if not KNOWN[self.config.sampler].defaults:
            raise CommandRefused(f"a grid has its own trials, but {self.study!r} is one; use `rekindle train`")
        values = known_values(self.config, load_task(self.config), hyperparameters)

        def work(connection: Connection) -> Command:
            revise(connection, self.study)
            given, rows = commands.commands(connection, self.study), trials(connection, self.study)
            config = Config.from_json(commands.stored_config(connection, self.study), self.study)
            left = config.trials[-1] - len(rows) // seeds_of(config)
            if len(commands.pending(given, rows)) >= left:
                _extend(connection, self.study, config.trials[-1] + 1)
            return commands.add(connection, self.study, ENQUEUE, {"hyperparameters": values}, self.who, why)

        return self.store.command(work)

    def extend(
        self,
        trials: int | None = None,
        why: str = "",
        *,
        epochs: int | None = None,
        priors: Mapping[str, str] = MappingProxyType({}),
        budget: str | None = None,
        goal: str | None = None,
        plateau: int | str | None = None,
        weight: float | str | None = None,
    ) -> Command:
        """Give the study more configurations or epochs, other ranges or bounds.

        A study that a bound has stopped resumes if that is another one now.

        Args:
            trials: their number in all.
            why: in the user's words.
            epochs: to which the best trials train, in all.
            priors: ranges of searched hyperparameters, by dotted name, from the next trials on.
            budget: the work after which it stops, such as 2h; "off" for none. The others likewise.
            goal: the return at which it stops, such as return:475.
            plateau: number of trials without a better one after which it stops.
            weight: its share of workers that train several studies, see `workers.sharing`.

        Raises:
            CommandRefused: the study has as many.
            BadConfig: it cannot have this number, or such ranges or bounds.
        """
        changes: list[Change] = []
        if trials is not None:
            check_count("trials", trials)
            changes.append((EXTEND, {"trials": trials}, lambda c: _extend(c, self.study, trials)))
        if epochs is not None:
            check_count("epochs", epochs)
            changes.append((EXTEND, {"epochs": epochs}, lambda c: extensions.lengthen(c, self.study, epochs)))
        if priors:
            texts = dict(priors)
            changes.append((EXTEND, {"priors": texts}, lambda c: extensions.search_otherwise(c, self.study, texts)))
        if bounds := bounds_of(budget=budget, goal=goal, plateau=plateau):
            changes.append((BOUND, bounds, lambda c: _bound(c, self.study, bounds)))
        if weight is not None:
            share = {"weight": parse_weight(str(weight))}
            changes.append((WEIGHT, share, lambda c: _bound(c, self.study, share)))
        if not changes:
            raise CommandRefused("extend changes something, but got nothing; give --trials, --budget, ... (see --help)")
        if {kind for kind, _, _ in changes} != {WEIGHT}:
            self._only_of_searches("extend", *(["pbt"] if changes[0][0] == EXTEND else []))

        def work(connection: Connection) -> Command:
            revise(connection, self.study)
            for kind, data, change in changes:
                change(connection)
                given = commands.add(connection, self.study, kind, data, self.who, why)
            resume_if_lifted(connection, self.study, self.who, why)
            return given

        return self.store.command(work)

    def _only_of_searches(self, what: str, *others: str) -> None:
        if self.config.scheduler in (CONFIRM, *others):
            raise CommandRefused(
                f"{what} changes a search by trials, but {self.study!r} is by {self.config.scheduler}, whose trials "
                "depend on each other; cancel one, or begin another study"
            )

    def _numbers(self, trial: int | str) -> Collection[int]:
        """Return the numbers of a configuration's replicates."""
        seeds = seeds_of(self.config)
        if isinstance(trial, int) or (trial.isdecimal() and len(trial) < 8):
            return range(int(trial) * seeds, (int(trial) + 1) * seeds)
        uid = self.store.uid(trial)
        numbers = [row.number for name, row in self.store.trials_of(uid) if name == self.study]
        if not numbers:
            raise CommandRefused(
                f"study {self.study!r} has no trial of task {uid}; `rekindle trials {self.study}` shows those it has"
            )
        return numbers


def bounds_of(**texts: str | int | None) -> dict[str, Any]:
    """Return the values of given bounds, None of those that are off."""
    parsers: dict[str, Callable[[str], Any]] = {"budget": parse_budget, "goal": parse_goal, "plateau": parse_plateau}
    given = {name: str(text) for name, text in texts.items() if text is not None}
    return {name: None if text == "off" else parsers[name](text) for name, text in given.items()}


def _bound(connection: Connection, study: str, bounds: Mapping[str, Any]) -> None:
    """Set bounds of a study, or its weight."""

    def change(stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
        config = Config.from_json(stored or {}, study)
        options = {name: value for name, value in {**config.options, **bounds}.items() if value is not None}
        algorithm = load_task(config)
        check_bounds(options, config.scheduler, algorithm)
        return {**(stored or {}), "options": options}

    change_study(connection, study, change)


def _extend(connection: Connection, study: str, total: int) -> None:
    """Set the number of configurations of a study."""

    def change(stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
        config = Config.from_json(stored or {}, study)
        if total <= config.trials[-1]:
            raise CommandRefused(f"extend takes more trials than {study!r} has, {config.trials[-1]}, but got {total}")
        longer = replace(config, trials=[*config.trials, total])
        check_sampler(longer)
        check_exhausted(longer)
        return {**(stored or {}), "trials": longer.trials}

    change_study(connection, study, change)
