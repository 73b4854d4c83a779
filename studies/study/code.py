"""Code of the user's that trainings of one study share, by digests.

Trials can be compared only if the same code trained them. A driver keeps the digests with what its processes share:
the configuration of a study, the identity of a hunt, an attribute of an Optuna study, the record of a task.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import MachineMismatch

if TYPE_CHECKING:
    from ...tasks.task import Task

FILES = "files"  # key of the digests: of each file and function that trainings start, by its path or name
IN_PYTHON = "code=True"  # argument with which a driver accepts other code


def check_files(subject: str, wanted: Mapping[str, str], present: Mapping[str, str], accept: str) -> None:
    """Raise MachineMismatch unless this process has the code of a study.

    Args:
        subject: what trains with the code, such as "study 's'".
        wanted: digests by file or function, as the study has them.
        present: digests as this process and its working directory have them.
        accept: what accepts the code as it is here.
    """
    for file, digest in wanted.items():
        if present.get(file) != digest:
            difference = f"has it with digest {present[file]}" if file in present else "lacks it"
            cure = f", or accept it as it is there (`{accept}`)" if file in present else ""
            raise MachineMismatch(
                f"{subject} trains with {file} of digest {digest}, but the working directory {os.getcwd()} "
                f"{difference}; put that file there, or run this in a folder that has it{cure}"
            )


def check_resumed(task: Task, accept: str) -> None:
    """Raise MachineMismatch if a task resumes with other code than before."""
    present, before = task.learner.files(), task.stored.before
    wanted = {name: before[key] for name in present if (key := f"code of {name}") in before}
    check_files(f"task {task.uid[:8]}", wanted, present, accept)
