"""Options of the processes that train."""

from __future__ import annotations

from typing import Annotated, TypedDict

from ...tasks.runtime import EVALUATION_ENVS, STUCK
from . import conversions
from .option import Group, Option, declared


class WorkerOptions(TypedDict):
    """Options that `rekindle tune` hands on to its workers, wherever they run."""

    device: Annotated[
        str,
        Option(
            "DEVICE",
            "torch device: auto (a GPU if there is one), cpu, cuda, cuda:1 or mps; not part of a task's identity, but "
            "results on different devices differ in their last bits (default: cpu)",
            Group.PROCESSES,
            default="cpu",
        ),
    ]
    env_processes: Annotated[
        int,
        Option(
            "N",
            "processes that step slow environments; results do not depend on it (default: 0, the training process)",
            Group.PROCESSES,
            default=0,
            parse=conversions.nonnegative,
        ),
    ]
    eval_envs: Annotated[
        int,
        Option(
            "N",
            "most environments that an evaluation steps at the same time; results do not depend on it",
            Group.PROCESSES,
            default=EVALUATION_ENVS,
        ),
    ]
    stuck: Annotated[
        float | None,
        Option(
            "DURATION",
            "kill a process that has made no step for this long, such as 90s, 10m or 2h; a study's trials are retried "
            "from their checkpoints; off: wait forever (default: 10m)",
            Group.PROCESSES,
            default=STUCK,
        ),
    ]
    lease: Annotated[
        float,
        Option("SECONDS", "time after which the trials of a silent worker go to others", Group.PROCESSES, default=60),
    ]
    grace: Annotated[
        float,
        Option(
            "SECONDS",
            "time between SIGTERM and the SIGKILL of a cluster's scheduler: a process saves between two steps, even "
            "within epochs and evaluations, and exits in time if a step takes longer",
            Group.PROCESSES,
            default=60,
        ),
    ]
    use_previous: Annotated[
        bool,
        Option("", "replace a damaged checkpoint by the last sound one, or start again", Group.OUTPUTS, default=False),
    ]
    patience: Annotated[
        float,
        Option(
            "SECONDS", "how long to wait for a database that is busy, full or unreachable", Group.COMMON, default=600
        ),
    ]


WORKER = declared(WorkerOptions)
