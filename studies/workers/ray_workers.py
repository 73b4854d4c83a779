"""Workers on a Ray cluster, for ``rekindle tune --engine ray``; the only module that imports ray.

An actor holds the CPUs and GPUs that a worker is given, and runs the same process there that the other engine runs
here. Ray need not know what becomes of it: trials are kept by leases, so whatever is killed, an actor, a process or a
machine, other workers carry its trials on.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import ray
import sqlalchemy as sa

from .supervisor import WorkerProcess, WorkersFailed

CONNECT_SECONDS = 10.0
ADDRESS_VARIABLE = "RAY_ADDRESS"  # Ray's own: the cluster to use where nothing else is said


class Hosted:
    """The actor: a worker's process, and what its parent wants of it."""

    def __init__(self, url: str, study: str, workers: int, extra: Sequence[str]):
        self._worker = WorkerProcess(url, study, workers, extra)

    def name(self) -> str:
        """The pid, and the machine."""
        return f"{self._worker.name} on {ray.util.get_node_ip_address()}"

    def run(self) -> tuple[int, list[str]]:
        """Waits for the process; its exit status and last words."""
        status = self._worker.process.wait()
        self._worker.wait(1.0)
        return status, list(self._worker.last_words)

    def stop(self) -> None:
        """Asks the process to save and stop."""
        self._worker.stop()


class RayWorker:
    """A worker somewhere on the cluster, as `tune.Tuning` sees it."""

    def __init__(self, cpus: float, gpus: float, *arguments: Any):
        # one thread waits for the process, another one may stop it
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_concurrency": 2, "max_restarts": 0}
        host = cast(Any, ray.remote(Hosted))  # what its methods become there, no type says
        self._actor = host.options(**options).remote(*arguments)
        self._name, self._end = self._actor.name.remote(), self._actor.run.remote()
        self._status: int | None = None
        self.last_words: Sequence[str] = []

    @property
    def name(self) -> str:
        """The pid and the machine, or that it has none yet."""
        try:
            return str(ray.get(self._name, timeout=0))
        except ray.exceptions.RayError:
            return "of Ray"

    @property
    def status(self) -> int | None:
        """None while it runs or waits for room; an actor that died counts as killed."""
        if self._status is None:
            if ray.wait([self._end], timeout=0)[0]:
                self._status, self.last_words = self._result()
            elif not _is_alive():  # it would wait for ever
                self._status, self.last_words = 1, ["no machine of the Ray cluster is alive any more"]
        return self._status

    def _result(self) -> tuple[int, list[str]]:
        try:
            status, words = ray.get(self._end)
        except ray.exceptions.RayError as error:
            failed = isinstance(error, ray.exceptions.RayTaskError) or getattr(error, "actor_init_failed", False)
            return 1 if failed else -signal.SIGKILL, str(error).strip().splitlines()
        return status, words

    def stop(self) -> None:
        """Asks it to save and stop; one that has not begun has nothing to save."""
        if ray.wait([self._name], timeout=0)[0]:
            self._actor.stop.remote()
        else:
            self.kill()

    def kill(self) -> None:
        """Ends the actor; its process then finds that its parent is gone, saves, and ends."""
        ray.kill(self._actor)

    def wait(self, seconds: float) -> None:
        """Waits for its end, and kills it if it takes too long."""
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
    """How many workers there are to be, and what starts one; Ray is left again at the end if it was entered here.

    Args:
        url: of the storage, which every machine of the cluster must reach.
        workers: how many; None for as many as there is room for.
        address: of the cluster; None for one on this machine that ends with this process.
        cpus, gpus: that Ray gives each worker.

    Raises ValueError for a storage that other machines cannot reach and for workers that no machine has room for, and
    WorkersFailed if the cluster does not answer.
    """
    url = reachable(url, address)
    address = address or os.environ.get(ADDRESS_VARIABLE) or "local"
    entered = not ray.is_initialized()
    if entered:
        _enter(address, workers, cpus)
    try:
        room = _room(cpus, gpus)
        count = workers or room
        yield count, lambda: RayWorker(cpus, gpus, url, study, count, list(extra))
    finally:
        if entered:
            ray.shutdown()


def reachable(url: str, address: str | None) -> str:
    """The URL of a storage as the workers can use it; ValueError if those of a cluster at this address cannot."""
    if not url.startswith("sqlite"):
        return url
    address = address or os.environ.get(ADDRESS_VARIABLE) or "local"
    if address != "local":
        raise ValueError(
            f"the workers of a Ray cluster are on many machines, and SQLite is for one, but got the storage {url} with "
            f"the cluster {address}; use PostgreSQL (--storage postgresql://user@host/name), or, for this machine "
            f"alone, neither --address nor {ADDRESS_VARIABLE}"
        )
    parsed = sa.make_url(url)
    return parsed.set(database=os.path.abspath(parsed.database or "")).render_as_string(hide_password=False)


def _enter(address: str, workers: int | None, cpus: float) -> None:
    own: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a Ray of ours reports to nobody
        needed = math.ceil((workers or 0) * cpus) or None  # as many as are asked for, as the other engine does
        own = {"num_cpus": needed, "include_dashboard": False}
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        _knock(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_sigterm)  # Ray takes it, and would end the process with nothing said
    except (OSError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise WorkersFailed(
            f"no Ray cluster answers at {address}: {said}; start one there (ray start --head), set RAY_AUTH_MODE=token "
            "if it asks for a token, or leave --address out"
        ) from error


def _knock(address: str) -> None:
    """OSError if nothing listens at a HOST:PORT, which takes Ray itself minutes to find out."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()


def _room(cpus: float, gpus: float) -> int:
    """How many workers the cluster has room for when it is empty; ValueError if for none."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": cpus, "GPU": gpus}
    room = sum(
        min([int(machine.get(name, 0) // each) for name, each in wanted.items() if each] or [1]) for machine in machines
    )
    if room:
        return room
    largest = ", ".join(f"{max(machine.get(name, 0) for machine in machines):g} {name}s" for name in wanted)
    raise ValueError(
        f"each worker is to have {cpus:g} CPUs and {gpus:g} GPUs, but no machine of the Ray cluster has both; the most "
        f"that one has is {largest}; ask for less with --cpus-per-worker and --gpus-per-worker"
    )
