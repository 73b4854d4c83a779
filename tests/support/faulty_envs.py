"""Environments that break rules; ``faulty_envs:faults/Name-v0`` imports this module, which registers them."""

from __future__ import annotations

import locale
import os
import random
import signal
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces


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


class Late(Drift):
    """Ignores its seed from a step on that no self-test reaches."""

    length = 400

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, *rest = super().step(action)
        return (obs if self.t < 150 else np.float32([np.random.default_rng().uniform(-1, 1)])), *rest  # type: ignore[return-value]


class OldStyle(Drift):
    """Seeds NumPy's global generator, as old code does, and draws from it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        np.random.seed(seed)
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        return np.random.uniform(-5, 5)


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


class LateImage(Drift):
    """Ignores its seed after some steps, and shows images."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def show(self) -> Any:
        generator = self.np_random if self.t < 10 else np.random.default_rng()
        return generator.integers(0, 255, (36, 36, 1), np.uint8)


class Rare(Drift):
    """Remembers how often it was reset, which shows only in episodes after the hundredth."""

    length = 5

    def __init__(self) -> None:
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        return float(self.resets) if self.resets > 100 else 0.0


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
        if at != "step":
            locale.setlocale(locale.LC_ALL, "C.UTF-8")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.meddle("reset")
        return super().reset(seed=seed)

    def push(self, action: Any) -> float:
        self.meddle("step")
        return super().push(action)


class Wrong(Drift):
    """Gives something wrong after some steps, of which the self-test sees none or all."""

    wrong = ""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        other = {"reward": None, "text": "1", "large": float("inf")}.get(self.wrong, reward)
        end = "False" if self.wrong == "end" else rest[0]
        info = {"info": None, "long info": {"x": 10**400}}.get(self.wrong, {"x": torch.tensor(1.0)})
        return (obs, other, end, rest[1], info)[: 3 if self.wrong == "tuple" else None]

    def reset(self, **how: Any) -> Any:
        result = super().reset(**how)
        return {"no reset": None, "long reset": (*result, 1)}.get(self.wrong, result)

    def __init__(self, what: str, after: int) -> None:
        self.what, self.after, self.steps = what, after, 0
        if what in ("class", "key"):
            self.observation_space = spaces.Dict({"x": Drift.observation_space, "k": spaces.Discrete(5)})

    def show(self) -> Any:
        self.steps += 1
        wrong = self.what if self.steps > self.after else ""
        if wrong == "end of data":
            next(iter(()))
        if wrong == "shape":
            return np.zeros(3, np.float32)
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


class Soak(gym.Env[Any, Any]):
    """An environment of any spaces, with faults that show after a number of steps."""

    steps_of_all = 0

    def __init__(self, see: Any, do: Any, length: int, faults: dict[str, int]) -> None:
        self.observation_space, self.action_space = space_of(see), space_of(do)
        self.length, self.faults, self.steps, self.memory = length, faults, 0, 0.0
        self.entropy = np.random.default_rng()

    def has(self, fault: str) -> bool:
        return fault in self.faults and self.steps >= self.faults[fault]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if "global generator" in self.faults:
            np.random.seed(seed)
        self.t, self.x = 0, float(self.np_random.normal())
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.t, self.steps = self.t + 1, self.steps + 1
        type(self).steps_of_all += 1
        numbers = spaces.flatten(self.action_space, action)
        self.x = 0.5 * self.x + 0.1 * float(np.tanh(numbers.sum())) + 0.1 * float(self.np_random.normal())
        self.x += 0.1 * np.random.normal() if self.has("global generator") else 0
        self.x += 0.1 * random.random() if self.has("unseeded generator") else 0
        self.x += 0.1 * self.entropy.normal() if self.has("entropy") else 0
        self.x += 0.1 * np.sin(self.memory) if self.has("memory") else 0
        self.x += 0.1 * np.sin(self.steps_of_all) if self.has("shared counter") else 0
        self.memory += self.x
        if self.has("in place") and isinstance(action, np.ndarray) and action.ndim:
            action[...] = action[::-1]
        if self.has("settings"):
            torch.set_default_dtype(torch.float64)
            np.seterr(all="raise")
        if self.has("exception"):
            raise ConnectionError("the simulator is gone")
        if self.has("end of data"):
            next(iter(()))
        reward = float("nan") if self.has("nan") else np.array([1, 2]) if self.has("rewards") else self.x
        return self.show(), reward, bool(abs(self.x) > 3), self.t >= self.length, {"x": self.x}

    def show(self) -> Any:
        self.observation_space.seed(int(1000 * abs(self.x)))
        shown = self.observation_space.sample()
        if self.has("wrong shape"):
            return np.zeros(7)
        if self.has("wrong key") and isinstance(shown, dict):
            shown.popitem()
        if self.has("out of range") and isinstance(self.observation_space, spaces.Discrete):
            return 7
        return shown


for own in [Drift, *Drift.__subclasses__(), Plan, Soak]:
    gym.register(f"faults/{own.__name__}-v0", own)
