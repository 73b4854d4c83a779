"""Conversion of ML-Agents' trainer configurations into run files.

Names and meanings are those of ML-Agents' documentation, "Training Configuration File" and "Training ML-Agents":
https://github.com/Unity-Technologies/ml-agents/tree/develop/docs. PPO's buffer of `buffer_size` experiences, in pieces
of `time_horizon` steps, becomes `num_envs` environments that take `num_steps` each. A schedule ends at `max_steps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ....spaces.errors import SpaceError, near
from ....tasks import load
from ....tasks.identity import TaskIdentity
from .reading import read

ENCODERS = {
    "simple": "simple",
    "nature_cnn": "nature",
    "resnet": "impala",
    "match3": "small",
    "fully_connected": "flat",
}
DIRECT = {  # names of hyperparameters by path below a behavior
    "hyperparameters.learning_rate": "optimizer.lr",
    "hyperparameters.beta": "ent_coef",
    "hyperparameters.epsilon": "clip_coef",
    "hyperparameters.lambd": "gae_lambda",
    "hyperparameters.num_epoch": "update_epochs",
    "hyperparameters.shared_critic": "model.shared_critic",
    "hyperparameters.tau": "tau",
    "hyperparameters.init_entcoef": "entropy.alpha",
    "hyperparameters.buffer_init_steps": "learning_starts",
    "network_settings.normalize": "normalize_obs",
    "network_settings.hidden_units": "model.width",
    "network_settings.num_layers": "model.layers",
    "reward_signals.extrinsic.gamma": "gamma",
    "reward_signals.extrinsic.strength": "extrinsic.strength",
    "behavioral_cloning.strength": "cloning.strength",
    "behavioral_cloning.steps": "cloning.steps",
    "behavioral_cloning.samples_per_update": "cloning.samples_per_update",
    "behavioral_cloning.batch_size": "cloning.batch_size",
    "reward_signals.gail.use_actions": "gail.use_actions",
    "reward_signals.gail.use_vail": "gail.variational",
}
SCHEDULES = {"learning_rate_schedule": "lr_schedule", "beta_schedule": "ent_coef_schedule"} | {
    "epsilon_schedule": "clip_coef_schedule"
}
SIGNALS = {"curiosity": "icm", "rnd": "rnd", "gail": "gail"}
OF_SIGNAL = {"gamma": "gamma", "strength": "strength", "learning_rate": "lr", "network_settings.hidden_units": "width"}
READ = ("behaviors", "default_settings", "environment_parameters")  # sections that become parts of the run file
COMMON: dict[str, Any] = {"max_steps": 500_000, "network_settings.hidden_units": 128, "network_settings.num_layers": 2}
COMMON |= {"reward_signals.extrinsic.gamma": 0.99}
DEFAULTS: dict[str, dict[str, Any]] = {  # of ML-Agents, by trainer and path
    "ppo": COMMON
    | {"hyperparameters.learning_rate": 3e-4, "hyperparameters.learning_rate_schedule": "linear"}
    | {"hyperparameters.batch_size": 1024, "hyperparameters.buffer_size": 10_240, "hyperparameters.num_epoch": 3}
    | {"hyperparameters.beta": 5e-3, "hyperparameters.epsilon": 0.2, "hyperparameters.lambd": 0.95},
    "sac": COMMON
    | {"hyperparameters.learning_rate": 3e-4, "hyperparameters.batch_size": 128, "hyperparameters.buffer_size": 50_000}
    | {"hyperparameters.tau": 0.005, "hyperparameters.init_entcoef": 1.0, "hyperparameters.buffer_init_steps": 0},
}
ABSENT: tuple[Any, ...] = (None, False, {}, "")  # values that switch something off


class Converted(NamedTuple):
    """A run file, and the settings without a counterpart."""

    content: dict[str, Any]
    without: list[str]


def convert(path: Path, env: str | Mapping[str, Any] | None = None, behavior: str | None = None) -> Converted:
    """Return the run file of one behavior.

    Args:
        path: path of the YAML file.
        env: environment, which ML-Agents' file does not name.
        behavior: name of the behavior; None for the only one.

    Raises:
        ValueError: the file is not such a configuration, a value is invalid, or the trainer has no counterpart.
    """
    whole = read(path)
    name, flat = _behavior(whole, path, behavior)
    trainer = flat.pop("trainer_type", "ppo")
    if trainer not in ("ppo", "sac"):
        raise ValueError(
            f"only the trainers ppo and sac have counterparts, but behavior {name} has trainer_type {trainer!r}"
        )
    given, flat = flat, DEFAULTS[trainer] | {path: value for path, value in flat.items() if value is not None}
    values, names = _hyperparameters(trainer, flat)
    space = load(trainer).learner.hyperparameters
    unknown = sorted(values.keys() - space.flat().keys())
    values = {each: value for each, value in values.items() if each in space.flat()}
    try:
        space.validate(values)
    except SpaceError as error:
        raise ValueError(f"{path}: behavior {name} has a value that {trainer} does not take: {error}") from None
    if "model.encoder" in values and env is not None and not _sees_images(trainer, env):
        del values["model.encoder"]  # ML-Agents' files name an encoder for every behavior
    content: dict[str, Any] = {"task": trainer}
    if parameters := whole.get("environment_parameters"):
        own = env if isinstance(env, Mapping) else {"id": env or "package:Environment-v0"}
        content["env"] = {**own, "parameters": parameters}
    elif env:
        content["env"] = env
    if "max_steps" in flat:
        content["env_steps"] = int(flat["max_steps"])
    if "keep_checkpoints" in flat or "checkpoint_interval" in flat:
        content["snapshots"] = _snapshots(flat, int(values.get("epoch_steps", space.flat()["epoch_steps"].default)))
    outside = dict(_flat({name: part or {} for name, part in whole.items() if name not in READ}))
    if isinstance(seed := outside.pop("env_settings.seed", None), int) and seed >= 0:
        content["seed"] = seed
    if device := outside.pop("torch_settings.device", None):
        content["device"] = device
    content["hyperparameters"] = values
    names |= dict.fromkeys(("max_steps", "keep_checkpoints", "checkpoint_interval"))
    left = {path: value for path, value in given.items() if path not in names or names[path] in unknown} | outside
    return Converted(content, [f"{path}: {value}" for path, value in left.items() if value not in ABSENT])


def _behavior(whole: Mapping[str, Any], path: Path, behavior: str | None) -> tuple[str, dict[str, Any]]:
    """Return a behavior's name, and its settings by path, defaults included."""
    behaviors = whole.get("behaviors")
    if not isinstance(behaviors, Mapping) or not behaviors:
        raise ValueError(f"an ML-Agents configuration has behaviors, but {path} has none")
    if behavior is None and len(behaviors) > 1:
        raise ValueError(f"a run file has one behavior, but {path} has {', '.join(behaviors)}; give --behavior")
    name = behavior or next(iter(behaviors))
    if name not in behaviors:
        raise ValueError(f"{path} has no behavior {name!r}{near(name, list(behaviors))}")
    return name, dict(_flat(whole.get("default_settings") or {})) | dict(_flat(behaviors[name] or {}))


def _snapshots(flat: Mapping[str, Any], epoch_steps: int) -> str:
    """Return the value of `snapshots`, with the interval in whole epochs."""
    keep = int(flat.get("keep_checkpoints", 5))  # ML-Agents' default
    if "checkpoint_interval" not in flat:
        return str(keep)
    return f"every:{max(1, round(int(flat['checkpoint_interval']) / epoch_steps))}:{keep}"


def _sees_images(trainer: str, env: str | Mapping[str, Any]) -> bool:
    """Return whether the task needs an image encoder in this environment."""
    try:
        TaskIdentity.of(load(trainer), env, 0, {"model.encoder": "simple"})
    except ValueError as error:
        return "model.encoder" not in str(error)  # other errors are reported when the task is trained
    return True


class _Settings:
    """Settings of a behavior by path, and the hyperparameters they became."""

    def __init__(self, flat: Mapping[str, Any]):
        self.flat = flat
        self.names: dict[str, str | None] = {path: name for path, name in DIRECT.items() if path in flat}

    def take(self, path: str, default: Any = None, name: str | None = None) -> Any:
        """Return a setting, or the default if it is absent or null."""
        self.names[path] = name
        value = self.flat.get(path)
        return default if value is None else value

    def have(self, prefix: str) -> bool:
        """Return whether any path begins with a prefix."""
        return any(path.startswith(prefix) for path in self.flat)


def _hyperparameters(trainer: str, flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Return the hyperparameters, and the name that each used path got."""
    settings = _Settings(flat)
    values = {name: flat[path] for path, name in DIRECT.items() if path in flat}
    values |= _rollouts_of_ppo(settings) if trainer == "ppo" else _memory_of_sac(settings)
    values |= _schedules(settings) | _networks(trainer, settings) | _signals(settings)
    return values, settings.names


def _rollouts_of_ppo(settings: _Settings) -> dict[str, Any]:
    size, batch = settings.take("hyperparameters.buffer_size"), settings.take("hyperparameters.batch_size")
    horizon = settings.take("time_horizon", 64)
    if size is None:
        return {}
    steps = min(int(horizon), int(size))
    values = {"num_steps": steps, "num_envs": max(1, int(size) // steps)}
    if batch is not None:
        total, wanted = steps * values["num_envs"], int(size) / int(batch)
        whole = [count for count in range(1, total + 1) if total % count == 0]
        values["num_minibatches"] = min(whole, key=lambda count: abs(count - wanted))
    return values


def _memory_of_sac(settings: _Settings) -> dict[str, Any]:
    values: dict[str, Any] = {"lr_schedule.name": "constant"}  # ML-Agents' default for SAC
    for name in ("buffer_size", "batch_size"):
        if (size := settings.take(f"hyperparameters.{name}")) is not None:
            values[name] = size
    starts = int(settings.take("hyperparameters.buffer_init_steps", 0, "learning_starts"))
    values["learning_starts"] = max(starts, int(values["batch_size"]))  # the first batch needs as many
    if (steps := settings.take("hyperparameters.steps_per_update")) is not None:
        values |= {"num_envs": 1, "num_steps": max(1, int(steps)), "num_updates": 1}
    return values


def _schedules(settings: _Settings) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for theirs, ours in SCHEDULES.items():
        if (kind := settings.take(f"hyperparameters.{theirs}", name=f"{ours}.name")) is not None:
            values[f"{ours}.name"] = kind
            if kind == "linear" and "max_steps" in settings.flat:
                values[f"{ours}.horizon"] = int(settings.flat["max_steps"])
    return values


def _networks(trainer: str, settings: _Settings) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if encoder := settings.take("network_settings.vis_encode_type"):
        values["model.encoder"] = ENCODERS.get(encoder, encoder)
    goal = "model.goal_conditioning"
    if settings.take("network_settings.goal_conditioning_type", name=goal) == "hyper":
        values[goal] = "hyper"
    if settings.have("network_settings.memory."):
        values["model.memory"] = "lstm"
        if trainer == "sac" and (length := settings.take("network_settings.memory.sequence_length")) is not None:
            values["model.sequence_length"] = length
    return values


def _signals(settings: _Settings) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for theirs, ours in SIGNALS.items():
        if settings.have(f"reward_signals.{theirs}."):
            values[f"{ours}.use"] = True
        for key, name in OF_SIGNAL.items():
            if (path := f"reward_signals.{theirs}.{key}") in settings.flat:
                values[f"{ours}.{name}"] = settings.take(path, name=f"{ours}.{name}")
    if settings.have("behavioral_cloning."):
        values["cloning.use"] = True
    return values


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
