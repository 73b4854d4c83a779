"""Workers of `tune` and `confirm`: forked processes, or those of Ray."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from rich.console import Console

from ....tasks import load
from ....tasks.compiled.loading import kernels
from ...engine.checked_config import load_task
from ...engine.confirmations import confirmation_config, confirmations_of, start_confirmation
from ...engine.snapshots import look
from ...garbage import importing
from ...options.option import words
from ...options.worker_options import WORKER
from ...storage.commands import cure_of, hold_of
from ...storage.locks.owner import cores
from ...storage.store import Store
from ...study.config import Config
from ...workers.forked import Crew, can_fork
from ...workers.supervisor import Supervisor, WorkerHandle, WorkerProcess
from ..output.live_progress import Progress
from ..output.terminal import note


def check_engine(arguments: argparse.Namespace) -> None:
    """Raise ValueError if workers cannot run with this --engine."""
    if arguments.engine == "ray":
        _check_gpus(arguments)
        try:
            from ...workers.ray_workers import reachable
        except ImportError as error:
            raise ValueError(f"--engine ray needs Ray: pip install 'rekindle-rl[ray]' ({error})") from error
        reachable(arguments.url, arguments.address)
        return
    only_with_ray = ("address", "cpus_per_worker", "gpus_per_worker")
    names = [f"--{name.replace('_', '-')}" for name in only_with_ray if getattr(arguments, name) is not None]
    if names:
        raise ValueError(f"only --engine ray takes options of Ray, but got {' and '.join(names)}; add --engine ray")


def _check_gpus(arguments: argparse.Namespace) -> None:
    """Raise ValueError unless workers use exactly the GPUs that Ray reserves."""
    gpus, device = arguments.gpus_per_worker, arguments.device
    if gpus and device in ("cpu", "mps"):
        raise ValueError(
            f"Ray reserves GPUs for workers that train on them, but --gpus-per-worker is {gpus:g} and --device is "
            f"{device}; add --device cuda"
        )
    if not gpus and device.startswith("cuda"):
        raise ValueError(
            f"a worker on Ray has only the GPUs that it reserves, but --device is {device}; add --gpus-per-worker 1"
        )
    if device.startswith("cuda:"):
        raise ValueError(f"a worker on Ray sees only its own GPUs, but --device is {device}; write --device cuda")


def crew_for(arguments: argparse.Namespace, config: Config) -> Crew:
    """Import the modules of workers and copiers, and fork processes for them.

    Kernels are loaded once, before the forks, if the study's tasks use them. No process is forked for CUDA, which does
    not work in a fork of a process that has used it.
    """
    with importing(arguments.own_process):
        for module in (".worker", ".curves", "...samplers.suggest"):
            import_module(module, __package__)
        forks = arguments.engine != "ray" and arguments.device == "cpu" and arguments.own_process and can_fork()
        if forks and config.uses_kernels(load(config.task)):
            kernels()
    rounds = 2 if getattr(arguments, "confirm", None) else 1  # of workers: of the search, and of its confirmation
    return Crew(rounds * (arguments.workers or cores()) + 1 + len(getattr(arguments, "log", ())) if forks else 0)


@contextmanager
def _worker_pool(
    arguments: argparse.Namespace, study: str, crew: Crew
) -> Iterator[tuple[int, Callable[[], WorkerHandle]]]:
    """Yield the number of workers, and a function that starts one."""
    extra = words(WORKER, vars(arguments))
    url, workers = arguments.url, arguments.workers
    if arguments.engine == "ray":
        from ...workers.ray_workers import cluster

        cpus, gpus = arguments.cpus_per_worker or 1.0, arguments.gpus_per_worker or 0.0
        with cluster(url, study, workers=workers, address=arguments.address, cpus=cpus, gpus=gpus, extra=extra) as pool:
            yield pool
        return
    workers = workers or cores()
    yield workers, lambda: WorkerProcess(url, study, workers, extra, crew)


def device_here(arguments: argparse.Namespace) -> str:
    """Return the device that this machine needs to have."""
    return "cpu" if arguments.engine == "ray" or arguments.command == "create" else arguments.device


@dataclass(frozen=True)
class Run:
    """Means of a command to train studies to their end.

    Attributes:
        arguments: arguments of the command.
        store: store of the studies.
        errors: console for progress and notes.
        crew: processes that were forked for workers.
    """

    arguments: argparse.Namespace
    store: Store
    errors: Console
    crew: Crew

    def say(self, text: str) -> None:
        """Print a note."""
        note(self.errors, text)

    def work(self, name: str) -> None:
        """Train a study to its end, and report if it was stopped."""
        store, grace = self.store, self.arguments.grace
        with (
            Progress(self.errors, name, store.url) as display,
            _worker_pool(self.arguments, name, self.crew) as (count, start_worker),
        ):
            Supervisor(store, name, count, start_worker, display, grace).run()
        if look(store, name).complete:
            return
        command = hold_of(store.commands(name))
        stopped = f"had the {command}; {cure_of(name, command)}" if command else "is not complete; rerun to resume"
        self.say(f"study {name} {stopped}")

    def confirm(self, study: str, top: int, seeds: int) -> str:
        """Train the confirmation of a study; return its name."""
        store = self.store
        config = confirmation_config(store, study, top, seeds, self.arguments.eval_episodes)
        config.probe(load_task(config), device_here(self.arguments))
        before = list(confirmations_of(store, study))
        name = start_confirmation(store, study, config)
        if before and name not in before:
            self.say(f"{name} trains on seeds that {before[-1]} has not used")
        elif before and name != before[-1]:
            self.say(f"{name} has these candidates and seeds already; the last confirmation is {before[-1]}")
        if not look(store, name).complete:
            self.work(name)
        return name
