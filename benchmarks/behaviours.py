"""Cost of a step of 8 agents of one behaviour, beside 8 environments of one agent.

    OMP_NUM_THREADS=1 python benchmarks/behaviours.py [ROUNDS]

Both train PPO on the same numbers of rows, with observations of 8 numbers and 4 actions. From their processor time that
of the simulator alone is subtracted. The two are trained in turns, and the least times count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from rekindle import PPO, Behaviours

AGENTS, SIZE, LIMIT, STEPS = 8, 8, 50, 2048
SEEN, DONE = spaces.Box(-9, 9, (SIZE,), np.float32), spaces.Discrete(4)


class Walk:
    """A walk of one agent."""

    def begin(self, seed: int | None) -> np.ndarray:
        self.rng, self.time = np.random.default_rng(seed), 0
        self.at = self.rng.standard_normal(SIZE).astype(np.float32)
        return self.at

    def move(self, action: int) -> tuple[np.ndarray, float, bool]:
        self.time += 1
        self.at = (0.9 * self.at + 0.1 * self.rng.standard_normal(SIZE)).astype(np.float32)
        return self.at, float(action == int(self.at[0] > 0)), self.time >= LIMIT


class Alone(gym.Env[Any, Any]):
    """One walk as Gymnasium's environment."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = SEEN, DONE

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.walk = Walk()
        return self.walk.begin(seed), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        obs, reward, over = self.walk.move(int(action))
        return obs, reward, False, over, {}


class Together(ParallelEnv):  # type: ignore[misc]  # PettingZoo has no types
    """Eight walks as one environment of PettingZoo's parallel interface."""

    metadata: ClassVar = {"name": "together"}

    def __init__(self) -> None:
        self.possible_agents = [f"walker_{i}" for i in range(AGENTS)]

    def observation_space(self, agent: str) -> Any:
        return SEEN

    def action_space(self, agent: str) -> Any:
        return DONE

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.agents, self.walks = list(self.possible_agents), {}
        for i, agent in enumerate(self.agents):
            self.walks[agent] = Walk()
            self.walks[agent].begin(None if seed is None else seed + i)
        return {agent: walk.at for agent, walk in self.walks.items()}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        moved = {agent: self.walks[agent].move(int(action)) for agent, action in actions.items()}
        obs, rewards, over = ({agent: x[i] for agent, x in moved.items()} for i in range(3))
        infos: dict[str, Any] = {agent: {} for agent in moved}
        self.agents = [agent for agent in self.agents if not over[agent]]
        return obs, rewards, dict.fromkeys(moved, False), over, infos


gym.register("Alone-v0", "__main__:Alone")


def walk(env: Any, action: Any, steps: int) -> None:
    """Step a simulator alone."""
    for step in range(steps):
        if step % LIMIT == 0:
            env.reset(seed=step)
        env.step(action)


def fit(task: Any) -> None:
    """Train one more epoch."""
    task.fit(task.epochs + 1)


def seconds(work: Callable[[], Any]) -> float:
    """Return the processor time of a function."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main(rounds: int = 8) -> None:
    """Print microseconds per step of an agent, of both."""
    values: dict[str, Any] = {"num_steps": 128, "num_minibatches": 4, "update_epochs": 4}
    tasks: list[Any] = [PPO("Alone-v0", seed=1).init(num_envs=AGENTS, epoch_steps=STEPS, **values)]
    for all_act in (True, False):
        several = Behaviours({"id": "pettingzoo/__main__:Together", "all_act": all_act}, seed=1)
        tasks.append(several.init(num_envs=1, epoch_steps=STEPS // AGENTS, walker=values))
    for task in tasks:
        task.fit(1)
    together = Together()
    actions = dict.fromkeys(together.possible_agents, 1)
    work: list[Callable[[], Any]] = [lambda: walk(Alone(), 1, STEPS), lambda: walk(together, actions, STEPS // AGENTS)]
    work += [partial(fit, task) for task in tasks]
    times = [[seconds(one) for one in work] for _ in range(rounds)]
    of_one, of_eight, one, *eight = (1e6 * min(column) / STEPS for column in zip(*times, strict=True))
    one, eight = one - of_one, [x - of_eight for x in eight]
    print(f"8 environments: {one:.0f} us per step of an agent")
    for name, cost in zip(("all act", "may leave"), eight, strict=True):
        print(f"8 agents, which {name}: {cost:.0f} us, {cost / one:.2f} times")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
