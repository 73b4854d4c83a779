"""Workers on a Ray cluster; the only module that imports ray.

An actor reserves CPUs and GPUs and runs the same worker process as ``--engine processes`` runs locally. Ray does not
need to track failures: trials are protected by leases, so if an actor, a process or a machine is killed, other workers
resume its trials.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import ray

from ..storage.sql.database import full_url
from .supervisor import WorkerProcess, WorkersFailed

CONNECT_SECONDS = 10.0
PAUSE = 0.5  # seconds between two looks at what a worker says
ADDRESS_VARIABLE = "RAY_ADDRESS"  # Ray's own variable for the default cluster


class Hosted:
    """Actor that runs a worker process."""

    def __init__(self, url: str, study: str, workers: int, extra: Sequence[str]):
        self._worker = WorkerProcess(url, study, workers, extra)

    def name(self) -> str:
        """Return the pid and the machine's address."""
        return f"{self._worker.name} on {ray.util.get_node_ip_address()}"

    def run(self) -> tuple[int, list[str]]:
        """Wait until the process ends; return its exit status and last lines."""
        status = self._worker.process.wait()
        self._worker.wait(1.0)
        return status, list(self._worker.last_words)

    def last_words(self) -> list[str]:
        """Return the last lines on the process's stderr, after a pause."""
        time.sleep(PAUSE)
        return list(self._worker.last_words)

    def stop(self, hurried: bool = False) -> None:
        """Ask the process to save and stop, or to end its step."""
        self._worker.stop(hurried)


class RayWorker:
    """A worker on the cluster, with the interface of `WorkerHandle`."""

    def __init__(self, cpus: float, gpus: float, *arguments: Any):
        # three threads: one waits for the process, one for its next words, and the third may stop it
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_concurrency": 3, "max_restarts": 0}
        actor = cast(Any, ray.remote(Hosted))  # ray's types do not describe the actor's methods
        self._actor = actor.options(**options).remote(*arguments)
        self._name, self._end = self._actor.name.remote(), self._actor.run.remote()
        self._heard = self._actor.last_words.remote()
        self._status: int | None = None
        self._words: Sequence[str] = []

    @property
    def name(self) -> str:
        """Pid and machine, or "of Ray" before the start."""
        try:
            return str(ray.get(self._name, timeout=0))
        except ray.exceptions.RayError:
            return "of Ray"

    @property
    def pid(self) -> None:
        """None: `kill` ends the actor, and its process then saves and exits."""

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs; a dead actor counts as killed."""
        if self._status is None:
            if ray.wait([self._end], timeout=0)[0]:
                self._status, self._words = self._result()
            elif not _is_alive():  # the result would never arrive
                self._status, self._words = 1, ["no machine of the Ray cluster is alive any more"]
        return self._status

    @property
    def last_words(self) -> Sequence[str]:
        """Last lines on its stderr, a moment old while it runs."""
        if self._status is None and ray.wait([self._heard], timeout=0)[0]:
            with suppress(ray.exceptions.RayError):  # the status will say why
                self._words = ray.get(self._heard)
                self._heard = self._actor.last_words.remote()
        return self._words

    def _result(self) -> tuple[int, list[str]]:
        try:
            status, words = ray.get(self._end)
        except ray.exceptions.RayError as error:
            failed = isinstance(error, ray.exceptions.RayTaskError) or getattr(error, "actor_init_failed", False)
            return 1 if failed else -signal.SIGKILL, str(error).strip().splitlines()
        return status, words

    def stop(self, hurried: bool = False) -> None:
        """Ask the worker to save and stop, or to hurry.

        One not started is killed.
        """
        if ray.wait([self._name], timeout=0)[0]:
            self._actor.stop.remote(hurried)
        else:
            self.kill()

    def kill(self) -> None:
        """Kill the actor; its process notices, saves and exits."""
        ray.kill(self._actor)

    def wait(self, seconds: float) -> None:
        """Wait until the worker ends; kill it after `seconds`."""
        if _is_alive():
            ray.wait([self._end], timeout=seconds)
        self.kill()


def _is_alive() -> bool:
    return any(node["Alive"] for node in ray.nodes())


@contextmanager
def cluster(
    url: str,
    study: str,
    *,
    workers: int | None,
    address: str | None,
    cpus: float,
    gpus: float,
    extra: Sequence[str] = (),
) -> Iterator[tuple[int, Callable[[], RayWorker]]]:
    """Connect to Ray; yield the number of workers and their starter.

    Args:
        url: URL of the storage, which must be reachable from every machine of the cluster.
        study: name of the study.
        workers: number of workers; None for as many as fit.
        address: address of the cluster; None for a new local one that ends with this process.
        cpus: CPUs reserved for each worker.
        gpus: GPUs reserved for each worker.
        extra: further options of ``rekindle worker``.

    Raises:
        ValueError: other machines cannot reach the storage, or no machine has room for a worker.
        WorkersFailed: the cluster does not answer.
    """
    url = reachable(url, address)
    address = address or os.environ.get(ADDRESS_VARIABLE) or "local"
    entered = not ray.is_initialized()
    if entered:
        _enter(address, workers, cpus)
    try:
        room = _room(cpus, gpus)  # raises ValueError if there is none
        count = workers or room
        yield count, lambda: RayWorker(cpus, gpus, url, study, count, list(extra))
    finally:
        if entered:
            ray.shutdown()


def reachable(url: str, address: str | None) -> str:
    """Return the storage's URL as workers must use it.

    Raises:
        ValueError: workers on other machines could not reach the storage.
    """
    if not url.startswith("sqlite"):
        return url
    address = address or os.environ.get(ADDRESS_VARIABLE) or "local"
    if address != "local":
        raise ValueError(
            f"the workers of a Ray cluster are on many machines, and SQLite is for one, but got the storage {url} with "
            f"the cluster {address}; use PostgreSQL (--storage postgresql://user@host/name), or, for this machine "
            f"alone, neither --address nor {ADDRESS_VARIABLE}"
        )
    return full_url(url)


def _enter(address: str, workers: int | None, cpus: float) -> None:
    options: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a private local cluster sends no usage reports
        # CPUs for all requested workers, even if this machine has fewer cores
        needed = math.ceil((workers or 0) * cpus) or None
        options = {"num_cpus": needed, "include_dashboard": False}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        _knock(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray replaces it, and would end the process without a message
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise WorkersFailed(
            f"no Ray cluster answers at {address}: {reason}; start one there (ray start --head), set "
            "RAY_AUTH_MODE=token if it asks for a token, or leave --address out"
        ) from error


def _knock(address: str) -> None:
    """Raise OSError if nothing listens; Ray itself would take minutes."""
    address_host, _, port = address.removeprefix("ray://").rpartition(":")
    if address_host and port.isdecimal():
        socket.create_connection((address_host, int(port)), CONNECT_SECONDS).close()


def _room(cpus: float, gpus: float) -> int:
    """Return how many workers fit on the cluster; ValueError if none does."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": cpus, "GPU": gpus}
    room = sum(
        min([int(machine.get(name, 0) // amount) for name, amount in wanted.items() if amount] or [1])
        for machine in machines
    )
    if room:
        return room
    largest = ", ".join(f"{max(machine.get(name, 0) for machine in machines):g} {name}s" for name in wanted)
    raise ValueError(
        f"each worker is to have {cpus:g} CPUs and {gpus:g} GPUs, but no machine of the Ray cluster has both; the most "
        f"that one has is {largest}; ask for less with --cpus-per-worker and --gpus-per-worker"
    )
