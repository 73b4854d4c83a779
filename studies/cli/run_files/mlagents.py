"""Conversion of ML-Agents' trainer configurations into run files.

Names and meanings are those of ML-Agents' documentation, "Training Configuration File" and "Training ML-Agents":
https://github.com/Unity-Technologies/ml-agents/tree/develop/docs. PPO's buffer of `buffer_size` experiences, in pieces
of `time_horizon` steps, becomes `num_envs` environments that take `num_steps` each. A schedule ends at `max_steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....spaces.errors import SpaceError, near
from ....tasks import load
from ....tasks.identity import TaskIdentity
from .settings import Converted, Settings, flat, listed

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
SCHEDULES = {  # with the value at which ML-Agents' linear decay ends
    "learning_rate": ("lr_schedule", 0.0),
    "beta": ("ent_coef_schedule", 1e-5),
    "epsilon": ("clip_coef_schedule", 0.1),
}
SIGNALS = {"curiosity": "icm", "rnd": "rnd", "gail": "gail"}
OF_SIGNAL = {"gamma": "gamma", "strength": "strength", "learning_rate": "lr", "network_settings.hidden_units": "width"}
BATCH = "hyperparameters.batch_size"
READ = ("behaviors", "default_settings", "environment_parameters")  # sections that become parts of the run file
# Defaults of ML-Agents, by trainer and path: mlagents/trainers/settings.py of release 22, and the trainers' own files.
COMMON: dict[str, Any] = {
    **{"max_steps": 500_000, "network_settings.hidden_units": 128, "network_settings.num_layers": 2},
    **{"reward_signals.extrinsic.gamma": 0.99, "hyperparameters.learning_rate": 3e-4},
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": COMMON
    | {"hyperparameters.batch_size": 1024, "hyperparameters.buffer_size": 10_240, "hyperparameters.num_epoch": 3}
    | {"hyperparameters.beta": 5e-3, "hyperparameters.epsilon": 0.2, "hyperparameters.lambd": 0.95}
    | {"hyperparameters.learning_rate_schedule": "linear"},
    "sac": COMMON
    | {"hyperparameters.batch_size": 128, "hyperparameters.buffer_size": 50_000, "hyperparameters.tau": 0.005}
    | {"hyperparameters.init_entcoef": 1.0, "hyperparameters.buffer_init_steps": 0}
    | {"hyperparameters.learning_rate_schedule": "constant", "hyperparameters.steps_per_update": 1},
}
OF_SIGNALS: dict[str, Any] = {
    "gamma": 0.99,
    "strength": 1.0,
    "learning_rate": 3e-4,
    "network_settings.hidden_units": 128,
}
OF_CLONING = {"strength": 1.0, "steps": 0, "samples_per_update": 0}
MEMORY = {"network_settings.memory.sequence_length": 64}
FIXED: dict[str, dict[str, Any]] = {  # what ML-Agents has no setting for
    "ppo": {"vf_coef": 1.0, "max_grad_norm": None, "target_kl": None, "normalize_reward": False}
    | {"optimizer.eps": 1e-8, "model.activation": "silu"},
    "sac": {"entropy.choice_target": 0.2},
}


def convert(
    path: Path, whole: Mapping[str, Any], env: str | Mapping[str, Any] | None, behavior: str | None
) -> Converted:
    """Return the run file of one behavior.

    Args:
        path: path of the YAML file.
        whole: its content.
        env: environment, which ML-Agents' file does not name.
        behavior: name of the behavior; None for the only one.

    Raises:
        ValueError: the file is not such a configuration, a value is invalid, or the trainer has no counterpart.
    """
    name, given = _behavior(whole, path, behavior)
    trainer = given.pop("trainer_type", "ppo")
    if trainer not in DEFAULTS:
        raise ValueError(
            f"only the trainers ppo and sac have counterparts, but behavior {name} has trainer_type {trainer!r}"
        )
    settings = Settings(_with_defaults(trainer, given))
    values, space = _hyperparameters(trainer, settings), load(trainer).learner.hyperparameters
    unknown = {name: value for name, value in values.items() if name not in space.flat()}
    values = {name: value for name, value in values.items() if name not in unknown}
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
    content["env_steps"] = int(settings.take("max_steps"))
    keep, interval = settings.take("keep_checkpoints"), settings.take("checkpoint_interval")
    if keep is not None or interval is not None:
        epoch_steps = int(values.get("epoch_steps", space.flat()["epoch_steps"].default))
        content["snapshots"] = _snapshots(keep, interval, epoch_steps)
    outside = dict(flat({name: part or {} for name, part in whole.items() if name not in READ}))
    if isinstance(seed := outside.pop("env_settings.seed", None), int) and seed >= 0:
        content["seed"] = seed
    if device := outside.pop("torch_settings.device", None):
        content["device"] = device
    content["hyperparameters"] = values
    return Converted(content, listed(settings.without(given, unknown) | outside))


def _with_defaults(trainer: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with ML-Agents' defaults for absent ones."""
    defaults, have = dict(DEFAULTS[trainer]), Settings(given).have
    for signal in SIGNALS:
        if have(prefix := f"reward_signals.{signal}."):
            lr = {"learning_rate": 1e-4} if signal == "rnd" else {"use_actions": False} if signal == "gail" else {}
            defaults |= {f"{prefix}{name}": value for name, value in (OF_SIGNALS | lr).items()}
            if (size := given.get(f"{prefix}encoding_size")) is not None:  # deprecated
                defaults[f"{prefix}network_settings.hidden_units"] = size
    if have("behavioral_cloning."):
        defaults |= {f"behavioral_cloning.{name}": value for name, value in OF_CLONING.items()}
        defaults["behavioral_cloning.batch_size"] = given.get(BATCH, defaults[BATCH])
    if have("network_settings.memory."):
        defaults |= MEMORY
    return defaults | {path: value for path, value in given.items() if value is not None}


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
    return name, dict(flat(whole.get("default_settings") or {})) | dict(flat(behaviors[name] or {}))


def _snapshots(keep: Any, interval: Any, epoch_steps: int) -> str:
    """Return the value of `snapshots`, with the interval in whole epochs."""
    keep = 5 if keep is None else int(keep)  # ML-Agents' default
    return str(keep) if interval is None else f"every:{max(1, round(int(interval) / epoch_steps))}:{keep}"


def _sees_images(trainer: str, env: str | Mapping[str, Any]) -> bool:
    """Return whether the task needs an image encoder in this environment."""
    try:
        TaskIdentity.of(load(trainer), env, 0, {"model.encoder": "simple"})
    except ValueError as error:
        return "model.encoder" not in str(error)  # other errors are reported when the task is trained
    return True


def _hyperparameters(trainer: str, settings: Settings) -> dict[str, Any]:
    """Return the hyperparameters that settings become."""
    direct = {path: name for path, name in DIRECT.items() if path in settings.values}
    values = FIXED[trainer] | {name: settings.take(path, name=name) for path, name in direct.items()}
    values |= _rollouts_of_ppo(settings) if trainer == "ppo" else _memory_of_sac(settings)
    return values | _schedules(trainer, settings) | _networks(trainer, settings) | _signals(settings)


def _rollouts_of_ppo(settings: Settings) -> dict[str, Any]:
    size, batch = (int(settings.take(f"hyperparameters.{name}")) for name in ("buffer_size", "batch_size"))
    steps = min(int(settings.take("time_horizon", 64)), size)
    envs = max(1, size // steps)
    total, wanted = steps * envs, size / batch
    whole = [count for count in range(1, total + 1) if total % count == 0]
    parts = min(whole, key=lambda count: abs(count - wanted))
    return {"num_steps": steps, "num_envs": envs, "num_minibatches": parts}


def _memory_of_sac(settings: Settings) -> dict[str, Any]:
    values = {name: int(settings.take(f"hyperparameters.{name}")) for name in ("buffer_size", "batch_size")}
    starts = int(settings.take("hyperparameters.buffer_init_steps", 0, "learning_starts"))
    values["learning_starts"] = max(starts, values["batch_size"])  # the first batch needs as many
    steps = max(1, int(settings.take("hyperparameters.steps_per_update")))
    return values | {"num_envs": 1, "num_steps": steps, "num_updates": 1}


def _schedules(trainer: str, settings: Settings) -> dict[str, Any]:
    """Return the schedules.

    Those of beta and epsilon are the learning rate's, unless they are given.
    """
    values: dict[str, Any] = {}
    default = settings.take("hyperparameters.learning_rate_schedule")
    horizon = int(settings.take("max_steps"))
    for theirs, (ours, last) in SCHEDULES.items():
        path = f"hyperparameters.{theirs}_schedule"
        if trainer == "sac" and theirs != "learning_rate" and path not in settings.values:
            continue
        kind = settings.take(path, default, f"{ours}.name")
        values[f"{ours}.name"] = kind
        if kind != "linear":
            continue
        first = float(settings.values.get(f"hyperparameters.{theirs}") or 0)
        if last <= first or not first:
            values[f"{ours}.horizon"] = horizon
            if last and first:
                values[f"{ours}.final"] = last / first
        else:  # ML-Agents' would rise to it
            values |= {f"{ours}.name": "piecewise", f"{ours}.points": [[0, 1.0], [horizon, last / first]]}
    return values


def _networks(trainer: str, settings: Settings) -> dict[str, Any]:
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


def _signals(settings: Settings) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for theirs, ours in SIGNALS.items():
        if settings.have(f"reward_signals.{theirs}."):
            values[f"{ours}.use"] = True
            settings.take(f"reward_signals.{theirs}.encoding_size", name=f"{ours}.width")  # see _with_defaults
        for key, name in OF_SIGNAL.items():
            if (path := f"reward_signals.{theirs}.{key}") in settings.values:
                values[f"{ours}.{name}"] = settings.take(path, name=f"{ours}.{name}")
    if settings.have("behavioral_cloning."):
        values["cloning.use"] = True
    return values
