"""Train a model with Stable-Baselines3, and train it on with Rekindle."""

import rekindle
import stable_baselines3

model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", seed=0)
model.learn(10_000)
model.save("sb3.zip")

task = rekindle.PPO("CartPole-v1", seed=0, warm_start="sb3.zip").init()
print("before", task.evaluate())
task.fit(epochs=3)
print("after", task.evaluate())
