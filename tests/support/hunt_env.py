"""A small multi-agent environment of PettingZoo's parallel interface, for tests."""

from __future__ import annotations

import math
import os
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from own_envs import turn
from pettingzoo import AECEnv, ParallelEnv


class Hunt(ParallelEnv):  # type: ignore[misc]  # PettingZoo has no types
    """Hunters on a line approach a deer, which leaves when it is caught; hunters starve one after another.

    A hunter gets 1 where it stands beside the deer at the end of a step, the deer 1 for each step that it survives.
    """

    metadata: ClassVar = {"name": "hunt"}

    def __init__(self, hunters: int = 2, steps: int = 12) -> None:
        self.hunters, self.steps = hunters, steps
        self.possible_agents = [*(f"hunter_{i}" for i in range(hunters)), "deer_0"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-20, 20, (2,) if agent == "deer_0" else (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.at = {agent: int(rng.integers(-5, 6)) for agent in self.agents}
        self.time = 0
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> dict[str, Any]:
        deer = self.at["deer_0"]
        seen = {agent: np.array([self.at[agent] - deer], np.float32) for agent in self.agents if agent != "deer_0"}
        if "deer_0" in self.agents:
            seen["deer_0"] = np.array([deer, self.time], np.float32)
        return seen

    def state(self) -> Any:
        return np.array([self.time, *self.at.values()])

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents), "only present agents act"
        self.time += 1
        for agent, action in actions.items():
            self.at[agent] += int(action) - 1
        acted = list(self.agents)
        near = {agent for agent in acted if agent != "deer_0" and abs(self.at[agent] - self.at["deer_0"]) <= 1}
        rewards = {agent: float(agent in near) for agent in acted}
        caught = bool(near) and "deer_0" in acted
        rewards.update({"deer_0": float(not caught)} if "deer_0" in acted else {})
        starved = {f"hunter_{i}" for i in range(self.hunters) if self.time > 4 * (i + 1)}
        terminated = {agent: agent in starved or (agent == "deer_0" and caught) for agent in acted}
        truncated = {agent: self.time >= self.steps and not terminated[agent] for agent in acted}
        self.agents = [agent for agent in acted if not (terminated[agent] or truncated[agent])]
        seen = {**{agent: np.zeros(2 if agent == "deer_0" else 1, np.float32) for agent in acted}, **self._seen()}
        return seen, rewards, terminated, truncated, {agent: {"near": agent in near} for agent in acted}


class Mismatched(Hunt):
    """Hunters that see different things."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-20, 20, (1 + self.possible_agents.index(agent),), np.float32)


class Lone(Hunt):
    """One hunter, whose deer never acts; the same as a Gymnasium environment."""

    def __init__(self) -> None:
        super().__init__(hunters=1)
        self.possible_agents = ["hunter_0"]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        rng = np.random.default_rng(seed)
        self.agents, self.time = ["hunter_0"], 0
        self.at = {"hunter_0": int(rng.integers(-5, 6)), "deer_0": 0}
        return self._seen(), {"hunter_0": {}}


class Chancy(Hunt):
    """A hunt whose seed decides nothing."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return super().reset(None, options)


class Deserted(Hunt):
    """A hunt without anybody in every episode that has a seed."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        seen, infos = super().reset(seed, options)
        if seed is not None:
            self.agents = []
        return seen, infos


class Stateless(Hunt):
    """A hunt without a state."""

    def state(self) -> Any:
        return ParallelEnv.state(self)


class Pictured(Hunt):
    """A hunt whose state is a picture."""

    def state(self) -> Any:
        return np.zeros((36, 36, 3), np.uint8)


class Drawn(Hunt):
    """A hunt that can be filmed."""

    metadata: ClassVar = {"name": "drawn", "render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((32, 32, 3), 10 * self.time, np.uint8)


class Undrawn(Drawn):
    """A hunt whose pictures are none."""

    def __init__(self, render_mode: str | None = None, picture: str = "") -> None:
        super().__init__(render_mode)
        self.picture = picture

    def render(self) -> Any:
        if not self.picture:
            raise NotImplementedError("no picture yet")
        return self.picture


class Told(Hunt):
    """A hunt whose info tells that hunters may not stay where they are."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        seen, infos = super().reset(seed, options)
        return seen, self._told(infos)

    def step(self, actions: dict[str, int]) -> Any:
        assert all(action != 1 for agent, action in actions.items() if agent != "deer_0"), "info forbids it"
        *results, infos = super().step(actions)
        return *results, self._told(infos)

    def _told(self, infos: dict[str, Any]) -> dict[str, Any]:
        present = {agent: {"action_mask": np.array([1, agent == "deer_0", 1])} for agent in self.agents}
        return {**infos, **present}


class Unseeded(Hunt):
    """A hunt whose reset takes no seed."""

    def reset(self, options: Any = None) -> Any:  # type: ignore[override]
        return super().reset(0, options)


ODD = {"rewards": None, "text": "1", "large": 10**400}  # rewards


class Wrong(Hunt):
    """A hunt that returns what PettingZoo's environments do not."""

    def __init__(self, what: str = "reset"):
        super().__init__()
        self.what = what
        if what == "raises":
            raise RuntimeError("no licence")
        if what == "numbers":
            self.possible_agents: list[Any] = [0, 1]
        elif what == "twice":
            self.possible_agents = ["hunter_0", "hunter_0"]
        elif what == "reserved":
            self.possible_agents = ["num_envs"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        if self.what == "too early":
            raise RuntimeError("reset first")
        if self.what == "nothing":
            return None  # type: ignore[return-value]
        return {}[agent] if self.what == "space" else super().observation_space(agent)

    def close(self) -> None:
        if self.what == "close":
            raise RuntimeError("the window is gone")

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed, options)
        if self.what == "nobody":
            self.agents = []
        elif self.what == "no agents":
            del self.agents
        return result[0] if self.what == "reset" else result

    def step(self, actions: dict[str, int]) -> Any:
        seen, rewards, *ends = super().step(actions)
        if self.what in ODD:
            rewards = dict.fromkeys(rewards, ODD[self.what])
        elif self.what == "ends":
            ends[0] = dict.fromkeys(ends[0], np.array([True, False]))
        elif self.what == "leaves" and self.time == 2:
            self.agents.remove("hunter_0")
        elif self.what == "stays" and self.time == 2:
            ends[0]["deer_0"] = True
        elif self.what == "listed twice" and self.time == 2:
            self.agents.append("deer_0")
        elif self.what == "absent":
            rewards["hunter_0"] = 0.5  # also when it has left
        elif self.what == "no reward":
            del rewards["deer_0"]
        elif self.what == "stranger":
            rewards["wolf_0"] = 0.5
        elif self.what == "new agent" and self.time == 2:
            self.agents.append("wolf_0")
        elif self.what == "unseen":
            del seen["deer_0"]
        return seen, rewards, *ends


def make_hunt(hunters: int = 1) -> ParallelEnv:
    return Hunt(hunters)


def make_anything(hunters: int = 1):  # type: ignore[no-untyped-def]
    return Hunt(hunters)


class Nim(AECEnv):  # type: ignore[misc]  # PettingZoo has no types
    """Two players take one or two of seven matches in turn; who takes the last one wins."""

    metadata: ClassVar = {"name": "nim", "is_parallelizable": False}
    render_mode: ClassVar = None

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["player_0", "player_1"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        matches = spaces.Box(0, 1, (7,), np.float32)
        return spaces.Dict({"observation": matches, "action_mask": spaces.Box(0, 1, (2,), np.int8)})

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.left, self.agent_selection = [*self.possible_agents], 7, "player_0"
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0), dict.fromkeys(self.agents, 0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> dict[str, Any]:
        mask = [agent == self.agent_selection and self.left > taken for taken in range(2)]
        return {"observation": np.eye(8, dtype=np.float32)[self.left][1:], "action_mask": np.array(mask, np.int8)}

    def step(self, action: int | None) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        assert action is not None
        assert action < self.left, "the mask forbids it"
        self.left -= int(action) + 1
        mover, self.agent_selection = self.agent_selection, f"player_{1 - int(self.agent_selection[-1])}"
        if not self.left:
            self.rewards = {agent: 1 if agent == mover else -1 for agent in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)


class Turning(Nim):
    """Games that end or block the process, or give rewards of NaN, if a variable says so; see `own_envs.Turning`."""

    def step(self, action: int | None) -> None:
        if os.environ.get("TURN") != "nan":
            turn()
        super().step(action)
        if os.environ.get("TURN") == "nan":
            self.rewards = dict.fromkeys(self.rewards, math.nan)


class Lost(Nim):
    """It is the turn of a player that does not exist."""

    def step(self, action: int | None) -> None:
        super().step(action)
        self.agent_selection = "player_7"
