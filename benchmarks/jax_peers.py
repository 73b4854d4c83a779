"""Peers that JAX compiles: SBX, and PPO in PureJaxRL's form, for `speed.py --jax PYTHON`.

    python3 -m venv jax && jax/bin/pip install jax sbx-rl      # or any environment that has both

In PureJaxRL's form (Lu et al. (2022), github.com/luchris429/purejaxrl) the environment, the rollout and the update are
one compiled program, mapped over the members of a cohort. A truncated episode counts there as a terminated one.
Compilation is not measured.

Each line of stdin is a JSON object {peer, task, env, members, steps, hp}, and its answer the env steps per second of
processor time, summed over the members.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
from jax import lax

OBS, ACTIONS, EPISODE = 4, 2, 500


def cartpole(key: Any, state: Any, steps: Any, action: Any) -> tuple[Any, Any, Any]:
    """One step of CartPole-v1: the state, the steps of the episode, and whether the last one ended."""
    x, x_dot, theta, theta_dot = state
    force, cos, sin = jnp.where(action == 1, 10.0, -10.0), jnp.cos(theta), jnp.sin(theta)
    temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * cos / 1.1
    state = jnp.stack([x, x_dot, theta, theta_dot]) + 0.02 * jnp.stack([x_dot, x_acc, theta_dot, theta_acc])
    ended = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 12 * 2 * math.pi / 360) | (steps + 1 >= EPISODE)
    first = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    return jnp.where(ended, first, state), jnp.where(ended, 0, steps + 1), ended


def network(key: Any, sizes: list[int], last_gain: float) -> list[tuple[Any, Any]]:
    gains = [math.sqrt(2)] * (len(sizes) - 2) + [last_gain]
    pairs = zip(jax.random.split(key, len(gains)), sizes[:-1], sizes[1:], gains, strict=True)
    return [(jax.nn.initializers.orthogonal(gain)(k, (i, o)), jnp.zeros(o)) for k, i, o, gain in pairs]


def output(layers: list[tuple[Any, Any]], x: Any) -> Any:
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def loss(parameters: Any, batch: Any, hp: dict[str, Any]) -> Any:
    """PPO's loss of a minibatch."""
    log_probs = jax.nn.log_softmax(output(parameters["pi"], batch["obs"]))
    log_prob = jnp.take_along_axis(log_probs, batch["actions"][:, None], 1)[:, 0]
    values, advantages = output(parameters["v"], batch["obs"])[:, 0], batch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio, clip = jnp.exp(log_prob - batch["log_probs"]), hp["clip_coef"]
    policy = -jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - clip, 1 + clip) * advantages).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(1).mean()
    return policy + hp["vf_coef"] * 0.5 * jnp.square(values - batch["returns"]).mean() - hp["ent_coef"] * entropy


def adam(parameters: Any, moments: Any, gradient: Any, hp: dict[str, Any]) -> tuple[Any, Any]:
    """A step of Adam down the clipped gradient."""
    mean, square, steps = moments
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradient)))
    scale, steps = jnp.minimum(hp["max_grad_norm"] / (norm + 1e-6), 1.0), steps + 1
    b1, b2 = hp["optimizer.beta1"], hp["optimizer.beta2"]
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * scale * g, mean, gradient)
    square = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(scale * g), square, gradient)

    def moved(p: Any, m: Any, v: Any) -> Any:
        m, v = m / (1 - b1**steps), v / (1 - b2**steps)
        return p - hp["optimizer.lr"] * m / (jnp.sqrt(v) + hp["optimizer.eps"])

    return jax.tree.map(moved, parameters, mean, square), (mean, square, steps)


def begin(seed: Any, hp: dict[str, Any]) -> Any:
    """A member before its training."""
    k1, k2, k3, k4 = jax.random.split(jax.random.PRNGKey(seed), 4)
    hidden = [hp["model.width"]] * hp["model.layers"]
    parameters = {"pi": network(k1, [OBS, *hidden, ACTIONS], 0.01), "v": network(k2, [OBS, *hidden, 1], 1.0)}
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    states = jax.random.uniform(k3, (hp["num_envs"], 4), minval=-0.05, maxval=0.05)
    return k4, parameters, (zeros, zeros, 0), states, jnp.zeros(hp["num_envs"], int)


def iterate(member: Any, hp: dict[str, Any]) -> Any:
    """One rollout and its updates."""
    num_envs, rows = hp["num_envs"], hp["num_envs"] * hp["num_steps"]

    def act(carry: Any, _: None) -> Any:
        key, states, steps = carry
        key, for_action, for_env = jax.random.split(key, 3)
        log_probs = jax.nn.log_softmax(output(parameters["pi"], states))
        actions = jax.random.categorical(for_action, log_probs)
        after, steps, ended = jax.vmap(cartpole)(jax.random.split(for_env, num_envs), states, steps, actions)
        log_prob = jnp.take_along_axis(log_probs, actions[:, None], 1)[:, 0]
        values = output(parameters["v"], states)[:, 0]
        row = {"obs": states, "actions": actions, "log_probs": log_prob, "values": values, "ended": ended}
        return (key, after, steps), row

    def advantage(following: Any, row: Any) -> Any:
        later, next_value = following
        goes_on = 1.0 - row["ended"]
        delta = 1.0 + hp["gamma"] * goes_on * next_value - row["values"]
        later = delta + hp["gamma"] * hp["gae_lambda"] * goes_on * later
        return (later, row["values"]), later

    def update(carry: Any, batch: Any) -> Any:
        parameters, moments = carry
        return adam(parameters, moments, jax.grad(loss)(parameters, batch, hp), hp), None

    def epoch(carry: Any, key: Any) -> Any:
        order = jax.random.permutation(key, rows).reshape(hp["num_minibatches"], -1)
        return lax.scan(update, carry, jax.tree.map(lambda x: x[order], batch))

    key, parameters, moments, states, steps = member
    (key, states, steps), rows_by_step = lax.scan(act, (key, states, steps), None, hp["num_steps"])
    last = output(parameters["v"], states)[:, 0]
    _, advantages = lax.scan(advantage, (jnp.zeros(num_envs), last), rows_by_step, reverse=True)
    batch = {**rows_by_step, "advantages": advantages, "returns": advantages + rows_by_step["values"]}
    batch = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), batch)
    key, shuffle = jax.random.split(key)
    (parameters, moments), _ = lax.scan(epoch, (parameters, moments), jax.random.split(shuffle, hp["update_epochs"]))
    return (key, parameters, moments, states, steps), rows_by_step["ended"].sum()


PROGRAMS: dict[str, Callable[[Any], Any]] = {}


def compiled(question: dict[str, Any]) -> float:
    """Steps per second of PureJaxRL's form."""
    hp, members = question["hp"], question["members"]
    size = hp["num_envs"] * hp["num_steps"]
    count = max(2, question["steps"] // size // members)
    cohort = jax.vmap(lambda seed: begin(seed, hp))(jnp.arange(members))
    name = json.dumps(question)
    if name not in PROGRAMS:
        train = jax.vmap(lambda member: lax.scan(lambda m, _: iterate(m, hp), member, None, count))
        PROGRAMS[name] = jax.jit(train).lower(cohort).compile()
    cohort, _ = jax.block_until_ready(PROGRAMS[name](cohort))  # it has begun to learn
    start = time.process_time()
    jax.block_until_ready(PROGRAMS[name](cohort))
    return float(count * size * members / (time.process_time() - start))


def sbx_speed(question: dict[str, Any]) -> float:
    """Steps per second of SBX's algorithm, once it has compiled and learns."""
    import flax.linen as nn
    import sbx
    from stable_baselines3.common.env_util import make_vec_env

    hp, task = question["hp"], question["task"]
    worlds = make_vec_env(question["env"], n_envs=hp["num_envs"], seed=0)
    nets, activation = [hp["model.width"]] * hp["model.layers"], {"tanh": nn.tanh, "relu": nn.relu}
    arguments: dict[str, Any] = {"learning_rate": hp["optimizer.lr"], "gamma": hp["gamma"], "seed": 0}
    arguments["policy_kwargs"] = {"net_arch": nets, "activation_fn": activation[hp["model.activation"]]}
    if task == "ppo":
        names = {"gae_lambda": "gae_lambda", "ent_coef": "ent_coef", "max_grad_norm": "max_grad_norm"}
        names |= {"num_steps": "n_steps", "update_epochs": "n_epochs", "clip_coef": "clip_range"}
        arguments["batch_size"] = hp["num_envs"] * hp["num_steps"] // hp["num_minibatches"]
    else:
        names = {name: name for name in ("buffer_size", "learning_starts", "batch_size", "tau")}
        names |= {"num_steps": "train_freq", "num_updates": "gradient_steps"}
    arguments |= {theirs: hp[ours] for ours, theirs in names.items()}
    model = getattr(sbx, task.upper())("MlpPolicy", worlds, **arguments)
    model.learn(2 * hp["epoch_steps"])
    start, before = time.process_time(), model.num_timesteps
    model.learn(question["steps"], reset_num_timesteps=False)
    return float(model.num_timesteps - before) / (time.process_time() - start)


PEERS = {"purejaxrl": compiled, "sbx": sbx_speed}


def main() -> None:
    for line in sys.stdin:
        question = json.loads(line)
        print(PEERS[question["peer"]](question), flush=True)


if __name__ == "__main__":
    main()
