"""Entry point of the command line: parsing, dispatch and error messages."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

from ...spaces.errors import SYNONYMS, near
from ...tasks.errors import LAST_LINES, class_and_text, environment_of, text_of
from ...tasks.runtime.interrupts import terminable
from ...tasks.runtime.watcher import TRYING
from ..garbage import end_quickly, importing
from ..redact import masked, printable
from ..shell import READING, in_storage
from .commands.options import FAILED, USAGE
from .output.results import results, set_apart
from .parsers import make_parser
from .parsers.looking import add_readers
from .run_files.reading import expand

LENGTH = 8192  # of an error
GRACE = 1.0  # seconds in which threads that others have started may end with the command
LATEST = 30.0  # seconds that others may take at the end of the process
PACKAGE, PARTS = Path(__file__).parents[2], ("spaces", "studies", "tasks")  # code whose warnings need no place
USUAL_FORMAT = warnings.formatwarning
PROGRAM = "command"  # in place of TASK, if words of a program follow ``--``
OF_ENVIRONMENTS = ("kwargs", "env_kwargs", "wrapper", "wrappers", "env_wrapper")  # options that other libraries have
IN_JSON = (
    "; an environment's arguments and wrappers stand in its JSON, "
    """'{"id": "ENV", "kwargs": {...}, "wrappers": [{"entry_point": "module:Class"}]}' in place of ENV"""
)
NAME = "\0"  # begins a word that followed ``--`` while argparse, which would take it for an option, sees it


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status."""
    own_process = argv is None  # not called by a program that has threads and databases of its own
    if own_process:
        _complete_streams()
    try:
        arguments = _parse(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return _say("stopped", 130)
    if isinstance(arguments, int):
        return arguments
    arguments.own_process = own_process
    arguments.directory = Path.cwd()  # of relative paths; an environment may change the working directory later
    if not own_process:
        return _run_safely(arguments)
    end_quickly()
    if getattr(arguments, "json", False):
        set_apart()
    warnings.formatwarning = _formatted
    try:
        with terminable():
            status = _run_safely(arguments)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a further Ctrl-C, while the interpreter ends, is silent
    _leave_behind(status)
    return status


def _formatted(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return the text of a warning, with the place of other code."""
    if any(Path(filename).is_relative_to(PACKAGE / part) for part in PARTS):
        return f"rekindle: warning: {message}\n"
    return USUAL_FORMAT(message, category, filename, lineno, line)


def _leave_behind(status: int) -> None:
    """End despite threads and exit handlers that environments have left."""
    threading.Thread(target=_end, args=(status,), daemon=True).start()
    end = time.monotonic() + GRACE
    left = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for thread in left:
        thread.join(max(0.0, end - time.monotonic()))
    if any(thread.is_alive() for thread in left):
        atexit._run_exitfuncs()
        for stream in (results(), sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _end(status: int) -> None:
    """End the process if it still runs after some time."""
    for stream in (results(), sys.stdout, sys.stderr):
        stream.flush()
    time.sleep(LATEST)
    os.write(2, f"rekindle: exit handlers (atexit) took more than {LATEST:g} s, and were left\n".encode())
    os._exit(status)


def _complete_streams() -> None:
    """Open closed standard streams, and let stdout escape letters.

    A file that is opened later, such as a database, must not get the descriptor to which C code reports errors.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # its encoding may lack letters of a study's name


def _parse(words: Sequence[str]) -> Namespace | int:
    """Return a command's options, or the exit status without one."""
    try:
        folder = os.getcwd()
    except OSError as error:
        why = "was deleted" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        return _say(f"error: a command needs a working directory, but this one {why}; cd to another one", USAGE)
    if not {"", folder} & {*sys.path}:
        sys.path.append(folder)  # finds the user's own environments and tasks, like `python -m`
    parser = make_parser(add_readers if {*words[:1]} & {*READING} else None)  # all others take 15 ms
    words, names = _split(words)
    try:
        words, of_file = _split(expand(parser.commands, _join_names(words)))
    except ValueError as error:
        return _say(f"error: {error}", USAGE)
    names = names or of_file
    if not words:
        parser.print_help(sys.stderr)
        return USAGE
    name, *rest = words
    if name.startswith("-"):
        parser.parse_args(words)  # --help or --version, or an error
    if name not in parser.commands:
        parser.error(f"there is no command {name!r}{near(name, parser.commands)}")
    command = parser.commands[name]
    runs_program = PROGRAM in rest
    marked = [] if runs_program else [NAME + word for word in names]
    line = [*command.with_values(rest), *marked]
    arguments, unknown = command.parse_known_intermixed_args(line)  # ENV may follow options after TASK
    if unknown:
        command.error(_explain_word(command, unknown[0]))
    for destination, value in vars(arguments).items():
        setattr(arguments, destination, _unmarked(value))
    arguments.command, arguments.parser = name, command
    if getattr(arguments, "task", None) == PROGRAM and hasattr(arguments, "space"):
        from .commands.programs import named  # slow to import

        try:
            arguments.task = named(names, arguments.space)
        except ValueError as error:
            return _say(f"error: {error}", USAGE)
    return arguments


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words before and after a first ``--``."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def _unmarked(value: Any) -> Any:
    """Return an argument's value without the mark of a word after ``--``."""
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if isinstance(value, Path):
        before, _, after = str(value).partition(NAME)  # before it may stand the working directory
        return Path(before, after)
    return value.removeprefix(NAME) if isinstance(value, str) else value


def _run_safely(arguments: Namespace) -> int:
    """Run a command, and explain errors in one line without --debug."""
    if arguments.debug:
        return _run(arguments)
    try:
        return _run(arguments)
    except KeyboardInterrupt as error:  # its classes for signals have a text and the signal
        return _say(str(error) or "stopped", 128 + getattr(error, "signal", signal.SIGINT))
    except BrokenPipeError as error:  # e.g. in `rekindle trials x | head`
        if environment_of(error):
            return _explain(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), results().fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - users get one line; --debug shows the rest
        return _explain(error)
    except BaseException as error:
        if not environment_of(error):
            raise
        return _explain(error)  # sys.exit in an environment, or a panic of its Rust code


def _explain_word(parser: ArgumentParser, word: str) -> str:
    """Explain why a command does not take a word, with a cure."""
    if not word.startswith("-"):
        return f"{parser.prog} takes no further {word.removeprefix(NAME)!r}"
    options = {option for action in parser._actions for option in action.option_strings}
    name = word.partition("=")[0]
    cure = IN_JSON if name.lstrip("-").replace("-", "_") in OF_ENVIRONMENTS else near(name, options)
    if not cure and "--set" in options:
        groups = SYNONYMS.get(name.lstrip("-").replace("-", "_"), [["NAME"]])
        ours = [f"--set {path}=VALUE" for group in groups for path in group]
        cure = f"; a hyperparameter is set by {' or '.join(ours)}"
    return f"{parser.prog} has no option {name}{cure}"


def _run(arguments: Namespace) -> int:
    """Import the module of the command, and run its function."""
    module, _, function = arguments.run.rpartition(".")
    with importing(arguments.own_process):
        run = getattr(import_module(f".commands.{module}", __package__), function)
        from ..storage.sql.database import full_url, without_password

    arguments.url = full_url(arguments.storage)  # while the working directory is still the user's
    is_usual = arguments.storage == arguments.parser.get_default("storage")
    with ExitStack() as stack:
        stack.enter_context(in_storage(None if is_usual else without_password(arguments.url)))
        plays = arguments.doing not in ("", TRYING)
        if plays or (arguments.doing and getattr(arguments, "env", "") is not None):
            from ...tasks.runtime.progress import at_work, watched

            # the environment's spaces are read before any trial begins
            stack.enter_context(watched(arguments.stuck, doing=arguments.doing))
            if plays:
                stack.enter_context(at_work())
        return int(run(arguments))


def _explain(error: BaseException) -> int:
    """Print an error as one line; return the exit status."""
    from ...tasks.errors import BadResume, Diverged, EnvironmentFailed, NotData, Stopped, TaskError
    from ..errors import BadURL, DamagedCheckpoint, StoreError, StudyMismatch, UnknownStudy

    if isinstance(error, BadResume) and error.__cause__ is not None:
        return _explain(error.__cause__)  # what broke a task of this command
    if isinstance(error, Stopped):
        return _say(str(error), 143)
    if isinstance(error, DamagedCheckpoint):
        return _say(f"{text_of(error)}; or run the same command with --use-previous", FAILED)
    if not isinstance(error, TaskError) and (id := environment_of(error)):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{id}: the environment's own code raised {class_and_text(error)}"
        return _say(f"error: {problem} ({frame.filename}, line {frame.lineno}; --debug shows the traceback)", FAILED)
    if isinstance(error, BadURL | StudyMismatch | UnknownStudy | ValueError):
        return _say(f"error: {text_of(error)}", USAGE)
    if isinstance(error, StoreError | Diverged | EnvironmentFailed | NotData):
        return _say(f"error: {text_of(error)}", FAILED)
    return _say(f"error: {class_and_text(error)} (run with --debug for the traceback)", FAILED)


def _say(text: str, status: int) -> int:
    message, quotes, lines = masked(text).partition(LAST_LINES)  # what a program printed keeps its lines
    line = " ".join((message + quotes).split())
    if len(line) > LENGTH:  # an environment's exception may quote megabytes
        line = f"{line[: LENGTH // 2]} ... {line[-LENGTH // 2 :]}"
    quoted = [f"  {line}" for line in lines.splitlines()]
    print("\n".join(map(printable, [f"rekindle: {line}", *quoted])), file=sys.stderr, flush=True)
    return status


def _join_names(argv: Sequence[str]) -> list[str]:
    """Rewrite ``--set:NAME VALUE`` as ``--set NAME=VALUE``.

    Orion's parser takes priors by the names of options, and each name only once.
    """
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word.startswith("--set:"):
            name, equals, value = word.removeprefix("--set:").partition("=")
            words += ["--set", *(f"{name}={text}" for text in ([value] if equals else islice(rest, 1)))]
        else:
            words.append(word)
    return words
