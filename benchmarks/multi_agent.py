"""Returns of IPPO, MAPPO and one joint agent, beside TorchRL, at the same settings, steps and episodes.

    python benchmarks/multi_agent.py mpe2.simple_spread_v3 [--steps 500000] [--seeds 0 1 2]
        [--run ippo torchrl-ippo mappo torchrl-mappo joint]

TorchRL's side is put together from its own parts as in its example of MAPPO and IPPO: a policy, a critic and a loss for
each group of agents. A critic of MAPPO sees its agent's observation and the environment's state(), on both sides. Steps
are those of the environment. Policies are evaluated with sampled actions; a return is the mean over agents. Processor
time is that of training. It needs: pip install --no-deps torchrl tensordict pyvers orjson.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rekindle import PPO, Behaviours
from rekindle.benchmarks.sharing import agents_of, mean_return, own_policy
from rekindle.spaces import unflatten
from rekindle.tasks.envs.agents.grouping import behaviour_of

ENVS, STEPS, EPOCHS, MINIBATCHES, WIDTH = 8, 125, 10, 4, 64  # episodes of MPE have 25 steps
GAMMA, LAMBDA, CLIP, LR, ENTROPY, MAX_NORM = 0.99, 0.95, 0.2, 7e-4, 0.01, 0.5
OURS: dict[str, Any] = {
    **{"num_steps": STEPS, "update_epochs": EPOCHS, "num_minibatches": MINIBATCHES, "model.width": WIDTH},
    **{"gamma": GAMMA, "gae_lambda": LAMBDA, "clip_coef": CLIP, "optimizer.lr": LR, "ent_coef": ENTROPY},
    **{"max_grad_norm": MAX_NORM, "vf_coef": 1.0, "critic_loss": "huber", "target_kl": None, "normalize_reward": False},
}
Trained = tuple[Callable[[], None], Callable[[], float]]  # functions that train, and that return the mean return


def ours(module: str, seed: int, steps: int, episodes: int, critic: str) -> Trained:
    """Rekindle's task, whose critics see nothing else ("none") or also the state."""
    env_module = importlib.import_module(module)
    task = Behaviours(f"pettingzoo/{module.replace('.', ':')}", seed=seed)
    behaviours = {behaviour_of(agent) for agent in env_module.parallel_env().possible_agents}
    values = {f"{b}.{name}": x for b in behaviours for name, x in {**OURS, "critic.central": critic}.items()}
    task.init(**unflatten({"num_envs": ENVS, "epoch_steps": ENVS * STEPS, **values}))
    return partial(_fit, task, steps), lambda: mean_return(env_module, partial(own_policy, task), episodes)


def joint(module: str, seed: int, steps: int, episodes: int) -> Trained:
    """One agent of Rekindle that sees and does everything."""
    task = PPO(f"pettingzoo/{module.replace('.', ':')}", seed=seed)
    task.init(**unflatten({"num_envs": ENVS, "epoch_steps": ENVS * STEPS, **OURS}))
    number = agents_of(importlib.import_module(module))
    return partial(_fit, task, steps), lambda: task.evaluate(episodes, deterministic=False) / number


def _fit(task: Any, steps: int) -> None:
    task.fit(-(-steps // (ENVS * STEPS)))


def theirs(module: str, seed: int, steps: int, episodes: int, central: bool) -> Trained:
    """TorchRL's learners of all groups."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictSequential
    from torchrl.collectors import Collector
    from torchrl.envs import SerialEnv
    from torchrl.envs.libs.pettingzoo import PettingZooWrapper
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    env_module = importlib.import_module(module)
    torch.manual_seed(seed)
    env = SerialEnv(ENVS, lambda: PettingZooWrapper(env_module.parallel_env(), return_state=True), device="cpu")
    env.set_seed(seed)
    groups = env.group_map[0]  # of the first copy
    learners = {name: _learner(env, name, len(names), central) for name, names in groups.items()}
    acts = TensorDictSequential(*[policy for policy, _, _ in learners.values()])
    frames = ENVS * STEPS
    collector = Collector(env, acts, frames_per_batch=frames, total_frames=-(-steps // frames) * frames)

    def train() -> None:
        for batch in collector:
            for _, loss, optimizer in learners.values():
                _update(batch, loss, optimizer)
            collector.update_policy_weights_()
        collector.shutdown()

    def play(observations: dict[str, Any]) -> dict[str, Any]:
        actions: dict[str, Any] = {}
        for name, names in groups.items():
            stacked = torch.stack([torch.as_tensor(observations[agent]) for agent in names])
            done = learners[name][0](TensorDict({name: {"observation": stacked}}))
            actions |= dict(zip(names, done[name, "action"].tolist(), strict=True))
        return actions

    @torch.no_grad()
    def evaluate() -> float:
        with set_exploration_type(ExplorationType.RANDOM):
            return mean_return(env_module, play, episodes)

    return train, evaluate


def _learner(env: Any, name: str, number: int, central: bool) -> tuple[Any, Any, torch.optim.Optimizer]:
    """The policy, the loss and the optimizer of a group of agents."""
    from tensordict.nn import TensorDictModule, TensorDictSequential
    from torchrl.modules import MultiAgentMLP, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss, ValueEstimators

    def perceptron(inputs: int, outputs: int) -> Any:
        sizes: dict[str, Any] = {"n_agents": number, "centralised": False, "share_params": True, "depth": 2}
        return MultiAgentMLP(inputs, outputs, num_cells=WIDTH, activation_class=torch.nn.Tanh, **sizes)

    def beside_state(observation: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return torch.cat([observation, state.to(observation).unsqueeze(-2).expand(*observation.shape[:-1], -1)], -1)

    action, observed = env.full_action_spec_unbatched[name, "action"], (name, "observation")
    size = env.observation_spec[observed].shape[-1]
    net = TensorDictModule(perceptron(size, action.space.n), [observed], [(name, "logits")])
    policy = ProbabilisticActor(
        net, [(name, "logits")], [(name, "action")], spec=action, distribution_class=torch.distributions.Categorical,
        return_log_prob=True, log_prob_key=(name, "log_prob"),
    )  # fmt: skip
    if central:
        both, size = (name, "beside_state"), size + env.observation_spec["state"].shape[-1]
        joined = TensorDictModule(beside_state, [observed, "state"], [both])
        value = ValueOperator(perceptron(size, 1), in_keys=[both], out_keys=[(name, "state_value")])
        critic: Any = TensorDictSequential(joined, value)
    else:
        critic = ValueOperator(perceptron(size, 1), in_keys=[observed], out_keys=[(name, "state_value")])
    loss = ClipPPOLoss(
        policy, critic, clip_epsilon=CLIP, entropy_coeff=ENTROPY, critic_coeff=1.0, loss_critic_type="smooth_l1",
        normalize_advantage=True,
    )  # fmt: skip
    keys = ("reward", "action", "done", "terminated", "advantage", "value_target")
    loss.set_keys(**{key: (name, key) for key in keys}, value=(name, "state_value"), sample_log_prob=(name, "log_prob"))
    loss.make_value_estimator(ValueEstimators.GAE, gamma=GAMMA, lmbda=LAMBDA)
    return policy, loss, torch.optim.Adam(loss.parameters(), LR, eps=1e-5)


def _update(batch: Any, loss: Any, optimizer: torch.optim.Optimizer) -> None:
    """Take the gradient steps of one rollout."""
    with torch.no_grad():
        critic = {"params": loss.critic_network_params, "target_params": loss.target_critic_network_params}
        loss.value_estimator(batch, **critic)
    rows = batch.reshape(-1)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(rows)).chunk(MINIBATCHES):
            terms = loss(rows[index])
            optimizer.zero_grad()
            (terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]).backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), MAX_NORM)
            optimizer.step()


RUNS: dict[str, Callable[[str, int, int, int], Trained]] = {
    "ippo": partial(ours, critic="none"),
    "torchrl-ippo": partial(theirs, central=False),
    "mappo": partial(ours, critic="state"),
    "torchrl-mappo": partial(theirs, central=True),
    "joint": joint,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module")
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--run", nargs="+", choices=RUNS, default=list(RUNS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        for name in options.run:
            train, evaluate = RUNS[name](options.module, seed, options.steps, options.episodes)
            before, start = evaluate(), time.process_time()
            train()
            took = time.process_time() - start
            print(
                f"{options.module} {options.steps:,} steps, {name}, seed {seed}: {evaluate():.2f}, before "
                f"{before:.2f}, {took:.0f} s of CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
