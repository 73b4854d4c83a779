"""A script with Stable-Baselines3, which saves neither environment nor generators, so it does not resume exactly.

rekindle tune command --space space.toml --trials 16 --epochs 1:27 -- \
    python sb3_file.py --lr {lr} --epochs {epochs} --seed {seed} --dir {checkpoint}
"""

import argparse
import os

import gymnasium
import rekindle
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--dir", required=True)
arguments = parser.parse_args()
file = os.path.join(arguments.dir, "model.zip")
if os.path.exists(file):
    model = PPO.load(file, env=gymnasium.make("CartPole-v1"), device="cpu")
else:
    model = PPO("MlpPolicy", "CartPole-v1", learning_rate=arguments.lr, n_steps=256, seed=arguments.seed, device="cpu")
for epoch in range(model.num_timesteps // 256 + 1, arguments.epochs + 1):
    model.learn(256, reset_num_timesteps=False)
    model.save(file)
    mean, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=5)
    rekindle.report(epoch, return_=mean)
