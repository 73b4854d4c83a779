"""Environments that break rules; ``faulty_envs:faults/Name-v0`` imports this module, which registers them."""

from __future__ import annotations

import contextlib
import io
import locale
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gated import is_of_training
from gymnasium import spaces
from pettingzoo import ParallelEnv
from rekindle.tasks.envs.base.joined import sizes_of


class Drift(gym.Env[Any, Any]):
    """A walk of a number in a Box, with noise at every step; subclasses break one rule."""

    observation_space: spaces.Space[Any] = spaces.Box(-9, 9, (1,))
    action_space: spaces.Space[Any] = spaces.Box(-1, 1, (1,))
    length = 23

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.x = 0, float(self.np_random.uniform(-1, 1))
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.x = 0.9 * self.x + 0.1 * self.push(action) + 0.01 * float(self.np_random.normal())
        return self.show(), -abs(self.x), False, self.t >= self.length, {}

    def push(self, action: Any) -> float:
        return float(np.asarray(action).reshape(-1)[0])

    def show(self) -> Any:
        return np.float32([self.x])


class Mirror(Drift):
    """Changes its action in place."""

    def push(self, action: Any) -> float:
        action[0] = -action[0]
        return float(action[0])


class Differentiates(Drift):
    """Computes a gradient by torch in every step, and raises without gradients."""

    def push(self, action: Any) -> float:
        x = torch.tensor(super().push(action), dtype=torch.float64, requires_grad=True)
        (0.5 * x * x).backward()
        assert x.grad is not None
        return float(x.grad)


class Halver(Drift):
    """Changes its action in place, with another result each time."""

    def push(self, action: Any) -> float:
        action *= 0.5
        return float(action[0])


class Keeper(Drift):
    """Changes an action of an earlier step, and an observation that it has returned."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.kept, self.shown = np.zeros(1), np.zeros(1, np.float32)
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        self.kept += 1
        self.kept = action
        return float(action[0])

    def show(self) -> Any:
        self.shown += 1
        self.shown = np.float32([self.x])
        return self.shown


class Flips(Drift):
    """Changes bits of a MultiBinary action in place, and options of its reset."""

    action_space = spaces.MultiBinary(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.wind = 0.0 if options is None else options.pop("wind")
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        action[:] = 1 - action
        return float(action.sum()) + self.wind


class Forgets(Drift):
    """Its reset ignores the seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=None)


class Sticky(Drift):
    """Repeats its last action by chance, also that of the episode before, as MinAtar does."""

    action_space = spaces.Discrete(3)
    last = 0

    def push(self, action: Any) -> float:
        if self.np_random.random() < 0.1:
            action = self.last
        self.last = action
        return 10.0 * (float(action) - 1)


class RarelySticky(Sticky):
    """Repeats the last action of the episode before in few of them, and begins as if one had been made already."""

    last = 2

    def push(self, action: Any) -> float:
        if self.t == 1 and 0.3 < self.np_random.random() < 0.32:
            action = self.last
        self.last = action
        return 10.0 * (float(action) - 1)


class Late(Drift):
    """Ignores its seed from a step on that no self-test reaches."""

    length = 400

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        return (obs if self.t < 150 else np.float32([np.random.default_rng().uniform(-1, 1)])), *rest  # type: ignore[return-value]


class Hidden(Drift):
    """Rewards by chance from a step on that no self-test reaches, and shows nothing."""

    length = 400

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, *rest = super().step(action)
        return 0 * obs, 1.0 if self.t < 150 else random.SystemRandom().random(), *rest  # type: ignore[return-value]


class Once(Drift):
    """Raises if it is at a step of an episode of training for the second time."""

    reached: ClassVar[set[int]] = set()

    def __init__(self, length: int, at: int) -> None:
        self.length, self.at = length, at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seed = seed
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        if self.t == self.at and is_of_training(self.seed):
            if self.seed in self.reached:
                raise RuntimeError("no way back")
            self.reached.add(self.seed)
        return super().push(action)


class Seedless(Drift):
    """Refuses seeds."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            raise ValueError("seeds are not supported")
        return super().reset()


class Growing(Drift):
    """Has more actions after its third reset."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        if self.resets > 2:
            self.action_space = spaces.Box(-1, 1, (2,))
        return super().reset(seed=seed)


class Shrinking(Drift):
    """Has fewer actions after its third reset, or from its third step on, and takes no others."""

    resets = 0

    def __init__(self, within: bool, in_place: bool = False) -> None:
        self.within, self.in_place = within, in_place
        self.action_space = spaces.Discrete(4)

    def take_away(self, count: int) -> None:
        if self.in_place:
            self.action_space.n = np.int64(count)
        else:
            self.action_space = spaces.Discrete(count)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        self.take_away(4 if self.within or self.resets < 3 else 2)
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        if self.within and self.t == 3:
            self.take_away(2)
        assert self.action_space.contains(action), f"invalid action {action}"
        return float(action)


class Untidy(Drift):
    """Prints, clears a variable, and leaves a thread and a fork of its process."""

    def __init__(self) -> None:
        os.write(1, b"build time: today\n")
        print("hello")
        os.environ.pop("REKINDLE_STARTED_BY", None)
        threading.Thread(target=threading.Event().wait).start()
        parent = os.getpid()
        if os.fork() == 0:
            while os.getppid() == parent:
                time.sleep(0.05)
            os._exit(0)


class Answers(Drift):
    """Has an answer to every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments: name


class Denies(Drift):
    """Raises a KeyError for names that it does not know."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class OldStyle(Drift):
    """Seeds NumPy's global generator, as old code does, and draws from it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        np.random.seed(seed)
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        return np.random.uniform(-5, 5)


class Deep(Drift):
    """Draws from global generators in parts of an episode that no self-test reaches."""

    length = 150

    def push(self, action: Any) -> float:
        return super().push(action) + (np.random.normal() + random.random() if self.t > 130 else 0)


class Unwilling(Drift):
    """Refuses to be reset in the middle of an episode."""

    t = length = 23

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.t < self.length:
            raise RuntimeError("the episode is not over")
        return super().reset(seed=seed)


class Unseeded(Drift):
    """Draws from global generators that nobody seeds."""

    def push(self, action: Any) -> float:
        return random.uniform(-5, 5) + np.random.normal()


class SharedSpace(Drift):
    """Draws observations from a space of its class."""

    observation_space = spaces.Box(-1, 1, (3,))
    length = 9

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(seed)
        return super().reset(seed=seed)

    def show(self) -> Any:
        return self.observation_space.sample()


class ClassCounter(Drift):
    """Counts the steps of all its instances' episodes, and ends their effect at a reset of any."""

    running = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        type(self).running = 0
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        type(self).running += 1
        return float(self.running)


class Repeats(Drift):
    """Has a generator that its constructor seeds."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t, self.x = 0, float(self.generator.uniform(-1, 1))
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.show(), -abs(self.x), False, self.t >= self.length, {}


class FewBeginnings(Drift):
    """Counts its episodes, which begin in two ways and go on without chance."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.episodes += 1
        self.t, self.x = 0, self.np_random.choice([0.1, 0.2], p=[0.7, 0.3]) + self.episodes / 1e4
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.show(), -abs(self.x), False, self.t >= self.length, {}


class ZeroIsNone(Drift):
    """Takes seed 0 for no seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed or None)


class OldSeed(Drift):
    """Is seeded by a method, as those of old Gym were."""

    def __init__(self) -> None:
        self.system = random.SystemRandom()  # has no state
        self.seed(self.system.randrange(2**32))

    def seed(self, seed: int) -> None:
        self._np_random = np.random.default_rng(seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset()


class SeededByReset(OldSeed):
    """Lets reset call the method."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.seed(seed)
        return super().reset()


class Received(Drift):
    """Keeps messages that a thread receives."""

    def __init__(self) -> None:
        self.messages: deque[int] = deque(maxlen=1000)
        self.open = True
        threading.Thread(target=self.receive, daemon=True).start()

    def receive(self) -> None:
        while self.open:
            self.messages.append(0)

    def close(self) -> None:
        self.open = False


class Extra(Drift):
    """Gives more than its space says, which is another object each time."""

    observation_space = spaces.Dict({"x": Drift.observation_space})

    def show(self) -> Any:
        return {"more": object(), "x": super().show()}


class Season(Drift):
    """Depends on the month."""

    def push(self, action: Any) -> float:
        return super().push(action) + datetime.now().month


class Uptime(Drift):
    """Depends on the hours for which the machine runs."""

    def push(self, action: Any) -> float:
        return super().push(action) + time.monotonic() // 3600


class Hourly(Drift):
    """Depends on the hour, which one of several functions tells."""

    readings: ClassVar = {
        "localtime": lambda: time.localtime().tm_hour,
        "gmtime": lambda: time.gmtime(None).tm_hour,
        "ctime": lambda: int(time.ctime().split(":")[0][-2:]),
        "strftime": lambda: int(time.strftime("%H")),
        "asctime": lambda: int(time.asctime().split(":")[0][-2:]),
        "clock_gettime": lambda: time.clock_gettime(time.CLOCK_REALTIME) // 3600 % 24,
        "numpy": lambda: int(np.datetime64("now").astype(int)) // 3600 % 24,
        "past": lambda: int(time.strftime("%H", time.gmtime(3600))) + np.datetime64("2020-01-01").astype(int) % 24,
    }

    def __init__(self, reading: str) -> None:
        self.reading = self.readings[reading]

    def push(self, action: Any) -> float:
        return super().push(action) + float(self.reading())


class LateImage(Drift):
    """Ignores its seed after some steps, and shows images."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def show(self) -> Any:
        generator = self.np_random if self.t < 10 else np.random.default_rng()
        return generator.integers(0, 255, (36, 36, 1), np.uint8)


class Rare(Drift):
    """Remembers how often it was reset, which shows only in episodes after the 300th."""

    length = 5

    def __init__(self) -> None:
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        return float(self.resets) if self.resets > 300 else 0.0


class Aged(Drift):
    """Rewards otherwise after some steps of its process, of which `place` keeps the count."""

    length = 5
    counted: ClassVar = {"steps": 0}

    def __init__(self, place: str, after: int = 3000) -> None:
        self.place, self.after = place, after

    def count(self, kept: list[int] = []) -> int:  # noqa: B006 - the fault
        if self.place == "argument":
            kept.append(0)
            return len(kept)
        if self.place == "module":
            faulty_ages.append(0)
            return len(faulty_ages)
        self.counted["steps"] += 1
        return self.counted["steps"]

    def push(self, action: Any) -> float:
        return 5.0 * (self.count() > self.after)


class Breaks(Drift):
    """Raises in some of its episodes, which their seeds decide."""

    length, share = 6, 0.04

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        first = super().reset(seed=seed)
        self.breaks_at = 3 if self.np_random.random() < self.share else None
        return first

    def push(self, action: Any) -> float:
        if self.t == self.breaks_at:
            raise RuntimeError("the solver found no solution")
        return super().push(action)


class Broken(Breaks):
    """Raises in a third of its episodes."""

    share = 0.33


class Unready(Breaks):
    """Raises in some of its resets, which their seeds decide."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        first = super().reset(seed=seed)
        if self.breaks_at is not None:
            raise RuntimeError("no start")
        return first


class Accident(Drift):
    """Raises once in each process, whatever the episode."""

    length = 6
    left: ClassVar = [500]  # steps

    def push(self, action: Any) -> float:
        self.left[0] -= 1
        if self.left[0] == 0:
            raise RuntimeError("connection lost")
        return super().push(action)


class Beyond(Drift):
    """Announces narrower bounds than it keeps to."""

    observation_space = spaces.Box(-1, 1, (1,))

    def show(self) -> Any:
        return np.float32([3])


class Lists(Drift):
    """Gives a list where its space is a Tuple, and takes actions as large as numbers are."""

    observation_space = spaces.Tuple([Drift.observation_space, spaces.Discrete(2)])
    action_space = spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (1,))

    def show(self) -> Any:
        return [[self.x], 1]


class Dose(Drift):
    """Takes actions of hundreds."""

    action_space: spaces.Space[Any] = spaces.Box(0, 1000, (2,))

    def push(self, action: Any) -> float:
        assert self.action_space.contains(action), action
        return float(action.sum()) / 100 - 10


class Plan(Dose):
    """Takes doses and a choice."""

    action_space = spaces.Dict({"dose": Dose.action_space, "mode": spaces.Discrete(2)})

    def push(self, action: Any) -> float:
        assert self.action_space.contains(action), action
        return float(action["dose"].sum()) / 100 - 10 * action["mode"]


class Threads(Drift):
    """Notes how many threads JAX would start with."""

    threads: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.threads.append(os.environ.get("NPROC", ""))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.threads.append(os.environ.get("NPROC", ""))
        return super().reset(seed=seed)


class Meddler(Drift):
    """Changes settings of the process, in its constructor, its reset or its steps."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.meddle("constructor")

    def meddle(self, at: str) -> None:
        if at != self.at:
            return
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(2)
        np.seterr(all="raise")
        warnings.simplefilter("error")
        os.chdir("/")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self.ring)
        signal.setitimer(signal.ITIMER_REAL, 1.0)  # the end of the process, without the handler
        if at != "step":
            os.environ.clear()
            os.environ["MEDDLED"] = self.at
            locale.setlocale(locale.LC_ALL, "C.UTF-8")
            sys.stdout = sys.stderr = io.StringIO()

    def ring(self, number: int, frame: Any) -> None:
        raise RuntimeError("the learner is interrupted")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.meddle("reset")
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        self.meddle("step")
        if self.at != "step":  # what it has set is there when it runs again
            assert os.environ["MEDDLED"] == self.at
            assert "PATH" not in os.environ
        return super().push(action)


class Quits(Drift):
    """Ends the process after some steps, of which a self-test sees none."""

    steps = 0

    def push(self, action: Any) -> float:
        Quits.steps += 1
        if Quits.steps > 4000:
            os._exit(3)
        return super().push(action)


class Clings(Drift):
    """Its close never returns."""

    def close(self) -> None:
        while True:
            with contextlib.suppress(Exception):
                threading.Event().wait()


class Mute(RuntimeError):
    """Cannot give its text."""

    def __str__(self) -> str:
        raise ValueError("there is none")


class Wrong(Drift):
    """Gives something wrong after some steps, of which the self-test sees none or all."""

    wrong = ""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        odd = {"reward": None, "text": "1", "large": float("inf"), "pair": np.ones(2), "complex": 1j, "whole": 10**400}
        other, end = odd.get(self.wrong, reward), {"end": "False", "no end": None}.get(self.wrong, rest[0])
        info = {"info": "none", "long info": {"x": 10**400}}.get(self.wrong, {"x": torch.tensor(1.0)})
        return (obs, other, end, rest[1], info)[: 3 if self.wrong == "tuple" else None]

    def reset(self, **how: Any) -> Any:
        result = super().reset(**how)
        return {"no reset": None, "long reset": (*result, 1), "list reset": [*result]}.get(self.wrong, result)

    def __init__(self, what: str, after: int) -> None:
        self.what, self.after, self.steps = what, after, 0
        if what in ("class", "key"):
            self.observation_space = spaces.Dict({"x": Drift.observation_space, "k": spaces.Discrete(5)})

    def show(self) -> Any:
        self.steps += 1
        wrong = self.what if self.steps > self.after else ""
        if wrong == "end of data":
            next(iter(()))
        if wrong == "mute":
            raise Mute
        if wrong == "pipe":
            raise BrokenPipeError("the simulator is gone")
        if wrong == "shape":
            return np.zeros(3, np.float32)
        if wrong == "huge":
            return np.array([1e300])
        if wrong == "gradient":
            return torch.zeros(1, requires_grad=True)
        self.wrong = wrong
        if self.what not in ("class", "key"):
            return super().show()
        if wrong == "key":
            return {"x": super().show()}
        return {"x": super().show(), "k": 5 if wrong == "class" else 4}


def space_of(form: Any) -> spaces.Space[Any]:
    """Return the space that JSON describes: a list, a dict, or the name of a leaf."""
    if isinstance(form, list):
        return spaces.Tuple([space_of(part) for part in form])
    if isinstance(form, dict):
        return spaces.Dict({name: space_of(part) for name, part in form.items()})
    leaves: dict[str, spaces.Space[Any]] = {
        "box": spaces.Box(-3, 3, (2,)),
        "table": spaces.Box(-1, 1, (2, 2), np.float64),
        "dose": spaces.Box(0, 500, (1,)),
        "choice": spaces.Discrete(3, start=-1),
        "choices": spaces.MultiDiscrete([2, 3], start=[1, 0]),
        "bits": spaces.MultiBinary((2, 2)),
        "board": spaces.Box(0, 1, (5, 6), np.uint8),
        "flags": spaces.Box(0, 1, (6, 5, 2), np.bool_),
        "image": spaces.Box(0, 255, (5, 5, 1), np.uint8),
    }
    return leaves[form]


KILLS = "REKINDLE_TESTS_KILLS"  # environment variable: a folder of files, by their number of steps of training


class Soak(gym.Env[Any, Any]):
    """An environment of any spaces, with faults that show after a number of steps.

    `told` says where a mask of actions stands: "", "observation", "info" or "method". The first file of the folder
    `KILLS` makes the process kill itself or hang, as its name says, and is renamed by it.
    """

    steps_of_all = trained = 0

    def __init__(self, see: Any, do: Any, length: int, faults: dict[str, int], told: str = "") -> None:
        self.observation_space, self.action_space, self.told = space_of(see), space_of(do), told
        self.sizes = sizes_of(self.action_space) if told else []
        if told == "observation":
            mask = spaces.Box(0, 1, (sum(self.sizes),), np.int8)
            self.observation_space = spaces.Dict({"action_mask": mask, "seen": self.observation_space})
        self.length, self.faults, self.steps, self.memory = length, faults, 0, 0.0
        self.entropy, self.kept = np.random.default_rng(), np.zeros(1)
        self.is_of_training, self.buffer = False, None
        if told == "method":
            self.action_masks = lambda: self.mask
        if "leak" in faults:  # a later one with an environment of its own
            environment = {KILLS: os.environ.get(KILLS, "")} if faults["leak"] > 3 else None
            subprocess.Popen(["sleep", "600"], start_new_session=faults["leak"] > 3, env=environment)

    def has(self, fault: str) -> bool:
        return fault in self.faults and self.steps >= self.faults[fault]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.is_of_training = is_of_training(seed)
        if "global generator" in self.faults:
            np.random.seed((seed or 0) % 2**32)
        if self.has("streams"):
            sys.stdout = sys.stderr = io.StringIO()
        if self.has("broken reset"):
            raise ConnectionError("the simulator is gone")
        self.t, self.x = 0, float(self.np_random.normal())
        return self.show(), self.say()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.check_mask(action)
        self.t, self.steps = self.t + 1, self.steps + 1
        type(self).steps_of_all += 1
        if self.is_of_training:
            type(self).trained += 1
            die_at(self.trained)
        numbers = spaces.flatten(self.action_space, action)
        self.x = 0.5 * self.x + 0.1 * float(np.tanh(numbers.sum())) + 0.1 * float(self.np_random.normal())
        self.x += 0.1 * np.random.normal() if self.has("global generator") else 0
        self.x += 0.1 * random.random() if self.has("unseeded generator") else 0
        self.x += 0.1 * self.entropy.normal() if self.has("entropy") else 0
        self.x += 0.1 * (time.monotonic() % 1) if self.has("clock") else 0
        self.x += 0.1 * np.sin(self.memory) if self.has("memory") else 0
        self.x += 0.1 * np.sin(self.steps_of_all) if self.has("shared counter") else 0
        self.x += 0.1 * np.sin(float(self.kept.sum())) if self.has("kept action") else 0
        self.memory += self.x
        if isinstance(action, np.ndarray) and action.ndim:
            if self.has("in place"):
                action[...] = action[::-1]
            self.kept = action
        if self.has("settings"):
            torch.set_default_dtype(torch.float64)
            np.seterr(all="raise")
        if self.has("exception"):
            raise ConnectionError("the simulator is gone")
        if self.has("exit"):
            sys.exit("the simulator is gone")
        if self.has("end of data"):
            next(iter(()))
        reward = float("nan") if self.has("nan") else np.array([1, 2]) if self.has("rewards") else self.x
        return self.show(), reward, bool(abs(self.x) > 3), self.t >= self.length, self.say()

    def check_mask(self, action: Any) -> None:
        if self.told:
            first = np.asarray(getattr(self.action_space, "start", 0)).reshape(-1)
            groups = np.split(self.mask, np.cumsum(self.sizes)[:-1])
            assert all(mask[a] for mask, a in zip(groups, np.asarray(action).reshape(-1) - first, strict=True))

    def say(self) -> dict[str, Any]:
        info: dict[str, Any] = {"x": self.x, "none": None, "text": "a", "deep": {"y": np.float32(self.x), "array": [1]}}
        if self.told == "info":
            info["action_mask"] = self.mask
        if self.has("odd info"):
            info = {"x": "nothing"} if self.faults["odd info"] else None  # type: ignore[assignment]
        elif self.has("endless info"):
            info |= {"whole": info, f"of step {self.t}": np.zeros(1000), "lock": threading.Lock(), 3: object()}  # type: ignore[dict-item]
            info["whole"] = info
        return info

    def show(self) -> Any:
        self.observation_space.seed(int(1000 * abs(self.x)))
        output = self.observation_space.sample()
        if self.told:
            self.mask = np.concatenate([self.np_random.random(n) < 0.5 for n in self.sizes]).astype(np.int8)
            self.mask[np.cumsum([0, *self.sizes[:-1]])] = 1
            if self.has("empty mask"):
                self.mask[:] = 0
            if self.told == "observation":
                output["action_mask"] = self.mask
        if self.has("buffer") and isinstance(output, np.ndarray):  # one array for all observations
            self.buffer = output if self.buffer is None else self.buffer
            self.buffer[...] = output
            return self.buffer
        if self.has("further parts") and isinstance(output, dict):
            output["object"] = object()
        if self.has("wrong shape"):
            return np.zeros(7)
        if self.has("nothing"):
            return None
        if self.has("wrong key") and isinstance(output, dict):
            output.popitem()
        if self.has("out of range") and isinstance(self.observation_space, spaces.Discrete):
            return 7
        return output

    def close(self) -> None:
        if self.has("broken close"):
            raise ConnectionError("the simulator is gone")


class SoakOfMany(ParallelEnv):  # type: ignore[misc]  # PettingZoo has no types
    """Agents with an environment each, whose episodes have different lengths."""

    metadata: ClassVar = {"name": "soak"}

    def __init__(self, length: int, **kwargs: Any) -> None:
        self.possible_agents = ["a_0", "a_1", "b_0"]
        self.envs = {agent: Soak(length=length + number, **kwargs) for number, agent in enumerate(self.possible_agents)}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.envs[agent].observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.envs[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = [*self.possible_agents]
        first = [env.reset(seed=None if seed is None else seed + 2 * n) for n, env in enumerate(self.envs.values())]
        return tuple(dict(zip(self.agents, part, strict=True)) for part in zip(*first, strict=True))  # type: ignore[return-value]

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        results = [self.envs[agent].step(actions[agent]) for agent in self.agents]
        result = [dict(zip(self.agents, part, strict=True)) for part in zip(*results, strict=True)]
        self.agents = [agent for agent in self.agents if not (result[2][agent] or result[3][agent])]
        return tuple(result)

    def close(self) -> None:
        for env in self.envs.values():
            env.close()


class AgedTeam(ParallelEnv):  # type: ignore[misc]  # PettingZoo has no types
    """Two agents whose class counts their steps."""

    metadata: ClassVar = {"name": "aged team"}
    counted: ClassVar = {"steps": 0}
    possible_agents: ClassVar = ["a_0", "a_1"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return Drift.observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.t = [*self.possible_agents], 0
        return self.of_each(np.zeros(1, np.float32)), self.of_each({})

    def of_each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.t += 1
        self.counted["steps"] += 1
        ended, seen = self.of_each(self.t >= 5), self.of_each(np.zeros(1, np.float32))
        self.agents = [] if self.t >= 5 else self.agents
        return seen, self.of_each(0.0), self.of_each(False), ended, self.of_each({})


class Gone:
    """Something that an environment may outlive."""


class Keeps(Drift):
    """Keeps a proxy of what is gone, and a number of 6000 digits."""

    def __init__(self) -> None:
        self.left, self.board = weakref.proxy(Gone()), 1 << 20_000


class Named(Drift):
    """Names parts of its observation by an integer and by a text."""

    observation_space = spaces.Dict({0: Drift.observation_space, "a": Drift.observation_space})  # type: ignore[dict-item]

    def show(self) -> Any:
        return {0: np.float32([self.x]), "a": np.float32([2 * self.x])}


class Incomparable(spaces.Space[Any]):
    """A space of the user's own, which cannot be compared."""


class Within(Drift):
    """Has actions of a kind of its own, or none but those of a wrapper."""

    action_space: Any = None

    def __init__(self, has: bool = True) -> None:
        if has:
            self.action_space = Incomparable((), np.int64)


class Offering(gym.ActionWrapper[Any, Any, Any]):
    """Offers two actions."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(2)

    def action(self, action: Any) -> int:
        return int(action)


class Defaulting(Drift):
    """Sets an option of its reset, unless it is given."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.wind = (options or {}).setdefault("wind", 0.5)
        return super().reset(seed=seed)


class Drawn(Drift):
    """Draws itself, has hybrid actions, and shows a number as an array of one."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = spaces.Discrete(5)  # type: ignore[assignment]
    action_space = spaces.Dict(push=spaces.Discrete(2), more=spaces.Box(-1, 1, (2,)))  # type: ignore[assignment]

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def push(self, action: Any) -> float:
        assert self.action_space.contains(action)
        return float(action["push"])

    def show(self) -> Any:
        return np.array([self.t % 5])

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


def die_at(steps: int) -> None:
    """Die or hang, if a file says so; one process takes one file."""
    if KILLS in os.environ and (files := sorted(Path(os.environ[KILLS]).glob("[0-9]*"))):
        after, way = files[0].name.split(",")[1:]
        if steps > int(after):
            files[0].rename(files[0].with_name(f"taken-{files[0].name}"))
            if way == "hang":
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)


faulty_ages: list[int] = []

for env_class in [Drift, *Drift.__subclasses__(), RarelySticky, Plan, SeededByReset, Broken, Unready, Soak]:
    gym.register(f"faults/{env_class.__name__}-v0", env_class)
