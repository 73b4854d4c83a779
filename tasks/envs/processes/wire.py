"""Messages between an environment process and its parent.

They are JSON objects followed by arrays; steps use shared memory instead.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from socket import socketpair
from typing import Any

import numpy as np

from ...errors import Hung
from ...runtime import progress
from ...runtime.watcher import Stillness, end_started_by
from ..base.envs import Array

STEP, DONE = b"step", b""  # the one request without a JSON object, and its answer
ALIGNMENT = 64  # bytes: no two arrays share a cache line
GRACE = 5.0  # seconds for a process to end after its parent closed the channel
START = 60.0  # smallest limit in seconds for a process to start, since its imports may be large
# Orders of sets of texts are the same in all processes, as they are within one.
HASHES = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
Answer = tuple[dict[str, Any], list[Array]]
Layout = Sequence[tuple[str, str, Sequence[int]]]  # (name, dtype, shape) of each array


def send(channel: Connection, content: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
    """Send an object, then its arrays."""
    forms = [(array.dtype.str, array.shape) for array in arrays]
    channel.send_bytes(json.dumps({**content, "arrays": forms}).encode())
    for array in arrays:
        channel.send_bytes(np.ascontiguousarray(array).tobytes())


def receive(channel: Connection, message: bytes | None = None) -> Answer:
    """Return an object and its arrays.

    Args:
        channel: the channel.
        message: text of the object, if it was read already.

    Raises:
        EOFError: the channel is closed.
    """
    content = json.loads(channel.recv_bytes() if message is None else message)
    arrays = [
        np.frombuffer(channel.recv_bytes(), dtype).reshape(shape).copy() for dtype, shape in content.pop("arrays")
    ]
    return content, arrays


class Child:
    """The parent's handle of an environment process."""

    def __init__(self, hello: Mapping[str, Any], memory: int) -> None:
        """Start the process; it answers ``hello`` once its environments are created."""
        ours, its = socketpair()
        with its:
            # It imports environments from the same folders, and uses one thread: the parallelism is the processes.
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            self.name = progress.new_name()
            with progress.simulating(), progress.marked(self.name):
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "rekindle.tasks.envs.processes.child", str(its.fileno()), str(memory)],
                    env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **HASHES},
                    stdin=subprocess.DEVNULL,
                    pass_fds=(its.fileno(), memory),
                    process_group=0,  # Ctrl-C reaches the parent alone
                )
        self.answered = False
        self.channel = Connection(ours.detach())
        self.readable = select.poll()
        self.readable.register(self.channel.fileno(), select.POLLIN)
        self.send(hello)

    def send(self, content: bytes | Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Send a request; `receive` will notice if the process is dead."""
        with suppress(ConnectionError):
            if isinstance(content, bytes):
                self.channel.send_bytes(content)
            else:
                send(self.channel, content, arrays)

    def receive(self, ticks: Array) -> Answer | None:
        """Return the process's answer; None if it is dead.

        Args:
            ticks: counter of its progress, (1,).

        Raises:
            Hung: it made no progress for too long, and was killed.
        """
        try:
            self._wait(ticks)
            message, self.answered = self.channel.recv_bytes(), True
            progress.tick()
            return ({}, []) if message == DONE else receive(self.channel, message)
        except (EOFError, ConnectionError):
            return None

    def _wait(self, ticks: Array) -> None:
        """Wait until it answers or dies."""
        limit = progress.limit()
        if limit is None:
            return
        if not self.answered:
            limit = max(limit, START)
        still = Stillness(limit, self.process.pid)
        while not self.readable.poll(1000 * still.poll):
            progress.tick()  # this process itself does not hang: it watches
            if still.exceeds(int(ticks[0])):
                self.process.kill()
                raise Hung(f"made no step for {limit:g} s")

    def release(self) -> None:
        """Close the channel; the process then closes its environments and ends."""
        self.channel.close()

    def wait(self) -> int:
        """Wait for the process to end, after ``release``; return its exit status.

        What it has started ends with it.
        """
        try:
            status = self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGTERM)  # its group, without those in sessions of their own
        end_started_by(self.name)
        return status


def memory_file(layout: Layout) -> int:
    """Return a descriptor of shared memory for these arrays.

    The memory has no name, so a crash leaves nothing behind.
    """
    size = sum(_size(dtype, shape) for _, dtype, shape in layout)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rekindle-envs")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def arrays_in(descriptor: int, layout: Layout) -> dict[str, Array]:
    """Return the arrays in shared memory, by name."""
    memory = mmap.mmap(descriptor, 0)
    arrays, begin = {}, 0
    for name, dtype, shape in layout:
        arrays[name] = np.ndarray(shape, dtype, memory, begin)
        begin += _size(dtype, shape)
    return arrays


def _size(dtype: str, shape: Sequence[int]) -> int:
    size = int(np.dtype(dtype).itemsize * np.prod(shape))
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
