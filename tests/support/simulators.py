"""Environments whose simulator is a process, as those of Unity, CARLA and Minecraft."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

VARIABLE = "REKINDLE_TESTS_SIMULATORS"  # a file of which each line is the pid of a simulator
SLEEP_FILE = shutil.which("sleep") or ""
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


def marked(name: str, value: str) -> list[int]:
    """Return the processes whose environment variable has this value."""
    results = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if f"{name}={value}".encode() in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                results.append(int(entry))
    return results


class Simulated(gym.Env[Any, Any]):
    """A walk beside which a simulator runs, in a session of its own if asked; `close` ends it."""

    observation_space = gym.spaces.Box(-9, 9, (1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, session: bool = False, broken: bool = False, variables: dict[str, str] | None = None) -> None:
        self.simulator = subprocess.Popen(
            [SLEEP_FILE, "600"], stdin=subprocess.DEVNULL, start_new_session=session, env=variables
        )
        if name := os.environ.get(VARIABLE):
            with Path(name).open("a") as file:
                file.write(f"{self.simulator.pid}\n")
        if broken:
            raise ValueError("the simulator has no such map")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = np.float32(self.np_random.uniform(-1, 1)), 0
        return np.array([self.at]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.at += np.float32(0.1 * (2 * action - 1))
        return np.array([self.at]), float(self.at), False, self.steps > 9, {}

    def close(self) -> None:
        self.simulator.terminate()
        self.simulator.wait()


class Endless(Simulated):
    """A walk that never ends, and has no simulator."""

    def __init__(self) -> None:
        """Start no simulator."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([self.at]), 1.0, False, False, {}

    def close(self) -> None:
        """End no simulator."""


class OnePort(Simulated):
    """A simulator that listens on a fixed port, so that there is one at most."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        try:
            self.socket.bind(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        super().__init__()

    def close(self) -> None:
        self.socket.close()
        super().close()


class Forking(Simulated):
    """A walk that forks a child and a daemon, and starts a program in a step; nobody ends them.

    Daemon and program have a session, an environment and descriptors of their own.
    """

    def __init__(self) -> None:
        file = os.open(os.environ[VARIABLE], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for is_daemon in (False, True):
            if child := os.fork():
                if is_daemon:
                    os.waitpid(child, 0)
                continue
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if is_daemon:
                os.setsid()
                if os.fork():
                    os._exit(0)
            os.write(file, f"{os.getpid()}\n".encode())
            if is_daemon:  # another program, without any trace of where it comes from
                os.closerange(0, 1000)
                os.execve(SLEEP_FILE, ["sleep", "600"], {})
            time.sleep(600)
            os._exit(0)
        os.close(file)
        self.programs = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.programs:
            super().__init__(session=True, variables={})
        self.programs = 1
        return super().step(action)

    def close(self) -> None:
        """End nothing."""


gym.register("Simulated-v0", entry_point=Simulated)
gym.register("Forking-v0", entry_point=Forking)
gym.register("Endless-v0", entry_point=Endless)
gym.register("OnePort-v0", entry_point=OnePort)
