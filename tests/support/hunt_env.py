"""A small multi-agent environment of PettingZoo's parallel interface, for tests."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


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
        return seen, rewards, terminated, truncated, {agent: {} for agent in acted}


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


def make_hunt(hunters: int = 1) -> ParallelEnv:
    return Hunt(hunters)


def make_anything(hunters: int = 1):  # type: ignore[no-untyped-def]
    return Hunt(hunters)
