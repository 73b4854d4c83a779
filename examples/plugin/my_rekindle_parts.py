"""A package that adds one of each: task, environment, scheduler, sampler and sink."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import optuna
from rekindle import PPO
from rekindle.studies.methods import Exporting, Sampling, Scheduling
from rekindle.studies.schedulers.halving import Halving


class FrugalPPO(PPO):
    """PPO; stored trials find the class by its name."""

    name = "frugal-ppo"


class Corridor(gymnasium.Env):
    """A corridor of eight cells; the last one ends the episode with a reward of 1."""

    observation_space = gymnasium.spaces.Box(0, 7, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)  # left, right

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell, self.steps = int(self.np_random.integers(4)), 0
        return np.array([self.cell], np.float32), {}

    def step(self, action):
        self.cell, self.steps = max(0, self.cell + (1 if action else -1)), self.steps + 1
        at_goal = self.cell == 7
        return np.array([self.cell], np.float32), float(at_goal), at_goal, self.steps >= 50, {}


class DropOne(Halving):
    """Successive halving that ends a single trial on each rung."""

    facts = Scheduling(races=True, across=True, lengthens=True)  # what else it can do

    def promotions(self, rung, entrants):
        return 0 if rung == len(self.rungs) - 1 else max(1, entrants - 1)


class EarlyRandom:
    """A generation of random trials, then Optuna's TPE."""

    facts = Sampling(pruned=True)

    @staticmethod
    def of(draw):
        return optuna.samplers.TPESampler(seed=draw.seed, n_startup_trials=draw.config.generation)


class JSONLines:
    """A line for each epoch of each run; the file is written anew at each start."""

    facts = Exporting(place="table")

    def __init__(self, path: Path, names: str):
        self.path, self.lines = path, []

    def last(self, run):
        return 0  # begin with the first epoch

    def write(self, run, points):
        self.lines += [json.dumps({"run": run.name, "epoch": point.epoch, **point.metrics}) for point in points]

    def end(self, run):
        pass

    def flush(self):
        self.path.write_text("".join(f"{line}\n" for line in self.lines))

    def close(self):
        self.flush()
