"""Commands to a study, checked against its configuration.

    steering = Steering(store, "cartpole", who="ana@laptop")
    steering.cancel(3, why="diverges")

A steered study still follows from its rows. Each suggested trial records how many commands were known at the time, an
excluded trial has no score in later decisions, and an enqueued configuration names the command that asked for it.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..engine.bounds import is_lifted, resume_if_lifted
from ..engine.checked_config import load_task
from ..engine.tune_options import check_bounds
from ..errors import BadConfig, CommandRefused
from ..options.conversions import MOST
from ..options.entries import check_count
from ..options.study_options import BOUNDS, EXTENDED, entries_of
from ..samplers.registry import check_exhausted, check_sampler
from ..schedulers.seeds import seeds_of
from ..shell import command_line
from ..storage import commands
from ..storage.commands import BOUND, CODE, ENQUEUE, EXTEND, PAUSE, RESUME, STOP, WEIGHT, Command, hold_of
from ..storage.studies import change_config, revise
from ..storage.studies import trials as stored_trials
from ..study.code import FILES
from ..study.config import RESUMES, Config
from ..study.searched import known_values
from . import extensions

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ..storage.store import Store


Change = tuple[str, dict[str, Any], Callable[["Connection"], object]]  # verb, data and effect of a command


def whoever() -> str:
    """Return this process's user and machine, as user@host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # in a container, the user may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


class Steering:
    """Commands to one study.

    Args:
        store: store that holds the study.
        study: name of the study.
        who: person or program that gives the commands; by default user@host.
    """

    def __init__(self, store: Store, study: str, who: str | None = None):
        self.store, self.study, self.who = store, study, who or whoever()
        self.config = Config.from_json(store.study(study).config, study)

    def stop(self, why: str = "") -> Command:
        """Make all workers save and exit."""
        return self._hold(STOP, why)

    def pause(self, why: str = "") -> Command:
        """Make all workers save and wait."""
        return self._hold(PAUSE, why)

    def resume(self, why: str = "") -> Command:
        """Resume a stopped or paused study."""
        return self._hold(RESUME, why)

    def _hold(self, verb: str, why: str) -> Command:
        def work(connection: Connection) -> Command:
            command = commands.hold(connection, self.study, verb, self.who, why)  # locks the study
            holding = hold_of([row for row in commands.commands(connection, self.study) if row.number < command.number])
            options = commands.stored_options(connection, self.study)
            if (
                verb == RESUME
                and holding
                and holding.who in BOUNDS
                and not is_lifted(holding.who, holding.data, options)
            ):
                raise CommandRefused(
                    f"study {self.study!r} cannot be resumed while its bound is reached: it had the {holding}; "
                    f"{commands.cure_of(self.study, holding)}"
                )
            return command

        return self.store.command(work)

    def cancel(self, trial: int | str, why: str = "") -> Command:
        """End a running trial; its worker is free within one epoch.

        Args:
            trial: number of the trial, or the uid of its task or a prefix of it.
            why: reason, for the record.

        Raises:
            CommandRefused: the trial does not exist or has ended.
        """
        numbers = self._numbers(trial)
        return self.store.command(lambda c: commands.cancel(c, self.study, numbers, self.who, why))

    def exclude(self, trial: int | str, why: str = "") -> Command:
        """Hide a trial from samplers and schedulers; end it if it runs.

        Args:
            trial: number of the trial, or the uid of its task or a prefix of it.
            why: reason, for the record.

        Raises:
            CommandRefused: no such trial, or it is excluded already; or the study is a population or a confirmation.
        """
        self._only_of_searches("exclude", members=False)
        numbers = self._numbers(trial)
        return self.store.command(lambda c: commands.cancel(c, self.study, numbers, self.who, why, forget=True))

    def enqueue(self, hyperparameters: Mapping[str, Any], why: str = "") -> Command:
        """Try the given hyperparameters next.

        If enqueued configurations already fill all remaining trials, the study gets one more trial.

        Args:
            hyperparameters: values by dotted name; the others have their defaults.
            why: reason, for the record.

        Raises:
            CommandRefused: the study is a grid, a population or a confirmation.
            BadConfig: a value is not in the searched space.
        """
        self._only_of_searches("enqueue", members=False)
        if not self.config.sampling.defaults:
            raise CommandRefused(f"a grid tries its own points only, and {self.study!r} is one; use `rekindle train`")
        values = known_values(self.config, load_task(self.config), hyperparameters)

        def work(connection: Connection) -> Command:
            revise(connection, self.study)
            steering, rows = commands.commands(connection, self.study), stored_trials(connection, self.study)
            config = Config.from_json(commands.stored_config(connection, self.study), self.study)
            following = range(len(rows) // seeds_of(config), config.trials[-1])
            left = sum(not any(n in repeating for repeating in config.repeating) for n in following)
            if len(commands.pending(steering, rows)) >= left:
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
        code: bool = False,
        **changes: Any,
    ) -> Command:
        """Give the study more configurations or epochs, other ranges or bounds.

        A study that a bound stopped resumes if that bound has changed.

        Args:
            trials: total number of configurations.
            why: reason, for the record.
            epochs: total epochs for the best trials.
            priors: new ranges by dotted name, from the next trials on.
            code: whether to continue with the files that training starts as this working directory has them.
            changes: new values of options that `extend` changes (`EXTENDED`): budget, such as "2h", goal, plateau and
                weight; "off" removes a bound, None changes nothing.

        Raises:
            CommandRefused: nothing is named to change, or the study already has that many trials or epochs.
            BadConfig: a number, range or option is invalid.
            TypeError: `extend` does not change an option of this name.
        """
        if unknown := sorted(changes.keys() - EXTENDED.keys()):
            raise TypeError(f"extend has no option {unknown[0]!r}; it changes {', '.join(EXTENDED)}")
        commanded = [*self._larger(trials, epochs, priors), *self._other_options(changes)]
        if code:
            commanded.append(self._other_code())
        if not commanded:
            raise CommandRefused(
                "extend needs something to change, such as --trials or --budget, but got nothing (see --help)"
            )
        if {verb for verb, _, _ in commanded} - {WEIGHT, CODE}:
            self._only_of_searches("extend", members=commanded[0][0] != EXTEND)

        def work(connection: Connection) -> Command:
            revise(connection, self.study)
            for verb, data, change in commanded:
                change(connection)
                command = commands.add(connection, self.study, verb, data, self.who, why)
            resume_if_lifted(connection, self.study, self.who, why)
            return command

        return self.store.command(work)

    def _larger(self, trials: int | None, epochs: int | None, priors: Mapping[str, str]) -> Iterator[Change]:
        """Yield the changes of size and ranges."""
        if trials is not None:
            check_count("trials", trials)
            yield EXTEND, {"trials": trials}, lambda c: _extend(c, self.study, trials)
        if epochs is not None:
            check_count("epochs", epochs)
            yield EXTEND, {"epochs": epochs}, lambda c: extensions.lengthen(c, self.study, epochs)
        if priors:
            if not isinstance(priors, Mapping):
                raise BadConfig(f"changed priors are a dict of texts by name, but got {priors!r}")
            texts = dict(priors)
            yield EXTEND, {"priors": texts}, lambda c: extensions.search_otherwise(c, self.study, texts)

    def _other_options(self, changes: Mapping[str, Any]) -> Iterator[Change]:
        """Yield the changes of options, those of bounds together."""
        values = {name: value for name, value in changes.items() if value is not None}
        for verb, names in {BOUND: BOUNDS, **{name: (name,) for name in EXTENDED if name not in BOUNDS}}.items():
            if entries := _entries({name: values[name] for name in names if name in values}):
                yield verb, entries, partial(_set_options, study=self.study, entries=entries)

    def _other_code(self) -> Change:
        """Return the change to the files of this working directory."""
        algorithm = load_task(self.config)
        files = dict(algorithm.learner.files())
        if files == self.config.options.get(FILES, {}):
            raise CommandRefused(f"the files of study {self.study!r} are the same in this folder; leave --code out")
        entries = {FILES: files, RESUMES: algorithm.learner.resume_differs()}
        return CODE, {FILES: files}, partial(_set_options, study=self.study, entries=entries)

    def _only_of_searches(self, noun: str, members: bool) -> None:
        """Raise CommandRefused for a confirmation, or for members of a population."""
        facts = self.config.scheduling
        if facts.confirms or (facts.population and not members):
            raise CommandRefused(
                f"the trials of {self.study!r} depend on each other ({self.config.scheduler}), so {noun} cannot change "
                "them; cancel a trial, or start another study"
            )

    def _numbers(self, trial: int | str) -> Collection[int]:
        """Return the numbers of a configuration's trials, one for each replicate."""
        seeds = seeds_of(self.config)
        if isinstance(trial, bool) or not isinstance(trial, int | str):
            raise CommandRefused(f"a trial is named by its number or uid, but got {trial!r}")
        if isinstance(trial, int) or (trial.isdecimal() and len(trial) < 8):
            number = int(trial)
            if not 0 <= number < MOST:  # no database has larger numbers
                shown_by = command_line("trials", self.study)
                raise CommandRefused(f"there is no trial {number} of study {self.study!r}; `{shown_by}` shows them")
            return range(number * seeds, (number + 1) * seeds)
        uid = self.store.uid(trial)
        numbers = [row.number for name, row in self.store.trials_of(uid) if name == self.study]
        if not numbers:
            shown_by = command_line("trials", self.study)
            raise CommandRefused(f"study {self.study!r} has no trial of task {uid}; `{shown_by}` shows those it has")
        return numbers


def _entries(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored values of options; None for a bound that is off."""
    stored = {name: value for name, value in values.items() if value != "off" or name not in BOUNDS}
    parsed = entries_of(stored)
    return {name: parsed.get(name) for name in values}


def _set_options(connection: Connection, study: str, entries: Mapping[str, Any]) -> None:
    """Set stored options of a study; None removes one."""

    def change(stored: Mapping[str, Any]) -> Mapping[str, Any]:
        config = Config.from_json(stored, study)
        options = {name: value for name, value in {**config.options, **entries}.items() if value is not None}
        check_bounds(options, config.scheduler, load_task(config))
        return {**stored, "options": options}

    change_config(connection, study, change)


def _extend(connection: Connection, study: str, total: int) -> None:
    """Set the number of configurations of a study."""

    def change(stored: Mapping[str, Any]) -> Mapping[str, Any]:
        config = Config.from_json(stored, study)
        if total <= config.trials[-1]:
            raise CommandRefused(
                f"{study!r} has {config.trials[-1]} trials already; give extend more than that, not {total}"
            )
        longer = replace(config, trials=[*config.trials, total])
        check_sampler(longer)
        check_exhausted(longer)
        return {**stored, "trials": longer.trials}

    change_config(connection, study, change)
