"""Names of metrics in other tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EPOCH = "time/epoch"  # number of the epoch, exported with its metrics whatever their names
Table = Mapping[str, tuple[str, float]]

# Our name: (their name, factor). Their value loss has no 1/2, and their entropy loss is negative.
SB3: Table = {
    "episode_return": ("rollout/ep_rew_mean", 1.0),
    "episode_length": ("rollout/ep_len_mean", 1.0),
    "info.is_success": ("rollout/success_rate", 1.0),
    "return": ("eval/mean_reward", 1.0),
    "env_steps": ("time/total_timesteps", 1.0),
    "epoch": ("time/epoch", 1.0),
    "updates": ("train/n_updates", 1.0),
    "lr": ("train/learning_rate", 1.0),
    "policy_loss": ("train/policy_gradient_loss", 1.0),
    "value_loss": ("train/value_loss", 2.0),
    "entropy": ("train/entropy_loss", -1.0),
    "alpha": ("train/ent_coef", 1.0),
}
ML_AGENTS: Table = {
    "episode_return": ("Environment/Cumulative Reward", 1.0),
    "episode_length": ("Environment/Episode Length", 1.0),
    "lr": ("Policy/Learning Rate", 1.0),
    "entropy": ("Policy/Entropy", 1.0),
    "value": ("Policy/Extrinsic Value Estimate", 1.0),
    "policy_loss": ("Losses/Policy Loss", 1.0),
    "value_loss": ("Losses/Value Loss", 2.0),
}
METABOX: Table = {
    "episode_return": ("train/episode_avg_return", 1.0),
    "entropy": ("train/avg_entropy", 1.0),
    "approx_kl": ("train/approx_kl", 1.0),
    "lr": ("learnrate/actor", 1.0),
    "policy_loss": ("loss/actor_loss", 1.0),
    "actor_loss": ("loss/actor_loss", 1.0),
    "value_loss": ("loss/critic_loss", 2.0),
    "critic_loss": ("loss/critic_loss", 1.0),
}
TABLES: Mapping[str, Table] = {"sb3": SB3, "ml-agents": ML_AGENTS, "metabox": METABOX, "rekindle": {}}
_NORMS = {"grad_norm.": "grad/", "grad_norm_clipped.": "grad_clipped/"}  # MetaBox has these for each network


def renamed(metrics: Mapping[str, float], names: str) -> dict[str, float]:
    """Return metrics under another tool's names.

    Args:
        metrics: values by our names.
        names: key of `TABLES`. A metric that its table lacks becomes "train/NAME"; those of behaviours keep its name.
    """
    table = TABLES[names]
    values: dict[str, float] = {}
    for name, value in metrics.items():
        base, dot, behaviour = name.partition(".")
        if name not in table and base in table:  # of a behaviour
            theirs, factor = table[base]
            theirs += dot + behaviour
        else:
            theirs, factor = table.get(name, (_other(name, names), 1.0))
        values[theirs] = factor * value
    return values


def _other(name: str, names: str) -> str:
    if names == "rekindle":
        return name
    if names == "metabox":
        for ours, theirs in _NORMS.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
    return f"train/{name}"


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters as numbers, booleans and text."""
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value) for name, value in values.items()
    }
