"""A corridor with a goal at its right end: an environment of one's own, in the form of Gymnasium."""

import gymnasium as gym
import numpy as np


class Corridor(gym.Env):
    """Walk right to the goal; a step costs 0.1, the goal gives 1."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=10):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = int(self.np_random.integers(self.length // 2))
        return self.see(), {}

    def step(self, action):
        self.position = max(self.position + (1 if action == 1 else -1), 0)
        arrived = self.position >= self.length
        return self.see(), 1.0 if arrived else -0.1, arrived, False, {}

    def see(self):
        return np.array([self.position / self.length], np.float32)


gym.register("Corridor-v0", Corridor, max_episode_steps=50)
