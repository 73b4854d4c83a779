"""MetaBox's environments for Rekindle: a learned optimizer on a problem that each reset draws.

    PYTHONPATH=examples rekindle train ppo metabox_env:MetaBox-v0 --info gbest

metaevobox pins versions that exclude Rekindle's: install it, and what it imports, with `pip install --no-deps`.
"""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
from metaevobox.environment.basic_environment import PBO_Env
from metaevobox.environment.optimizer.rlepso_optimizer import RLEPSO_Optimizer
from metaevobox.environment.problem.SOO.COCO_BBOB.bbob_dataset import BBOB_Dataset


class MetaBox(gym.Env):
    """RLEPSO's optimizer, whose 35 coefficients are the action, on BBOB's training problems."""

    def __init__(self, dim=10, evaluations=2000):
        config = SimpleNamespace(
            dim=dim, maxFEs=evaluations, log_interval=100, n_logpoint=20, full_meta_data=False, device="cpu"
        )
        self.problems = BBOB_Dataset.get_datasets("bbob-10D", 5, difficulty="easy")[0].data
        self.optimizer = RLEPSO_Optimizer(config)
        self.optimizer.seed(0)
        state = PBO_Env(self.problems[0], self.optimizer).reset()
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, np.shape(state), np.float32)
        self.action_space = gym.spaces.Box(0, 1, (35,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.optimizer.seed(int(self.np_random.integers(2**31)))
        self.env = PBO_Env(self.problems[self.np_random.integers(len(self.problems))], self.optimizer)
        return np.asarray(self.env.reset(), np.float32), {}

    def step(self, action):
        state, reward, ended, _ = self.env.step(action)
        info = {"gbest": float(self.optimizer.cost[-1])}
        return np.asarray(state, np.float32), float(reward), bool(ended), False, info


gym.register("MetaBox-v0", MetaBox)
