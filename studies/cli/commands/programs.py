"""Programs that train, and ``rekindle check-resume``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from ....tasks.adapters.program_commands import ProgramCommand
from ...engine.views import View
from ..run_files.reading import read
from . import options
from .storage import database_exists, existing_store


class ResumeCheckView(View):
    """Comparison of trainings with and without a kill."""

    exact: Annotated[bool, "whether the kill changed nothing"]
    differs: Annotated[str, "differences"]
    outside: Annotated[Sequence[str], "files that a program wrote outside of its checkpoint folder"]


def named(words: Sequence[str], space: str | None) -> str:
    """Return the name of the task that runs a program.

    Args:
        words: command line of the program.
        space: file with its hyperparameters, see `ProgramCommand.of`.

    Raises:
        ValueError: there is no file or no program, or they do not match.
    """
    if space is None:
        raise ValueError("a program's hyperparameters are in a file; name it: --space space.toml")
    return ProgramCommand.of(words, read(Path(space))).name


def check_resume(arguments: argparse.Namespace) -> int:
    """Train with and without a kill, and compare what was reported."""
    from ....tasks import load
    from ....tasks.adapters.checking import check, files_outside
    from ....tasks.adapters.programs import ProgramLearner, remember
    from ...engine.runner import note_resumes
    from ..output.terminal import new_console, note, print_json

    algorithm = load(arguments.task)
    values = options.space(arguments, algorithm).parse(*options.assignments(arguments))
    env = options.described_env(arguments, arguments.env)
    before = files_outside()
    differences = check(lambda: algorithm(env, seed=arguments.seed).init(**values), arguments.epochs)
    outside = sorted(files_outside() - before) if issubclass(algorithm.learner, ProgramLearner) else []
    differs = "; ".join(differences)
    if issubclass(algorithm.learner, ProgramLearner):
        remember(algorithm.learner, differs)
        if database_exists(arguments):
            with existing_store(arguments) as store:
                note_resumes(store, algorithm, differs)
    written = [Path(name).name for name, *_ in outside]
    if arguments.json:
        result = ResumeCheckView(exact=not differences, differs=differs, outside=written)
        return print_json(result, options.FAILED if differences else 0)
    out = new_console()
    note(out, f"not exact: {differs}" if differences else f"exact: {arguments.epochs} epochs, with and without a kill")
    if differences:
        note(out, "to resume exactly, save all that changes, such as random generators, optimizers and environments")
    if written:
        note(out, f"outside of {{checkpoint}}, where nothing is stored, these were written: {', '.join(written)}")
    return options.FAILED if differences else 0
