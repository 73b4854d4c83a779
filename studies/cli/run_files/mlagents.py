"""Conversion of ML-Agents' trainer configurations into run files.

Names and meanings are those of ML-Agents' documentation, "Training Configuration File" and "Training ML-Agents":
https://github.com/Unity-Technologies/ml-agents/tree/develop/docs. PPO's buffer of `buffer_size` experiences, in pieces
of `time_horizon` steps, becomes `num_envs` environments that take `num_steps` each. A schedule ends at `max_steps`.
Several behaviors, or one with `self_play`, become the task `behaviours`, whose environments they share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
SELF_PLAY = ("save_steps", "team_change", "swap_steps", "window", "play_against_latest_model_ratio", "initial_elo")
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
EPOCH = 4096  # steps of an epoch, unless it is given
FIXED: dict[str, dict[str, Any]] = {  # what ML-Agents has no setting for
    "ppo": {"vf_coef": 1.0, "max_grad_norm": None, "target_kl": None, "normalize_reward": False}
    | {"optimizer.eps": 1e-8, "model.activation": "silu"},
    "sac": {"entropy.choice_target": 0.2},
}


def convert(
    path: Path, whole: Mapping[str, Any], env: str | Mapping[str, Any] | None, behavior: str | None
) -> Converted:
    """Return the run file of one behavior, or of all.

    Args:
        path: path of the YAML file.
        whole: its content.
        env: environment, which ML-Agents' file does not name.
        behavior: name of the behavior; None for all.

    Raises:
        ValueError: the file is not such a configuration, a value is invalid, or the trainer has no counterpart.
    """
    behaviors = [_converted(name, content, path) for name, content in _behaviors(whole, path, behavior).items()]
    several = len(behaviors) > 1 or bool(behaviors[0].self_play)
    first, values = behaviors[0], _shared(behaviors) if several else behaviors[0].values
    if "model.encoder" in values and env is not None and not _sees_images(first.trainer, env):
        del values["model.encoder"]  # ML-Agents' files name an encoder for every behavior
    content: dict[str, Any] = {"task": "behaviours" if several else first.trainer}
    if parameters := whole.get("environment_parameters"):
        environment = env if isinstance(env, Mapping) else {"id": env or "package:Environment-v0"}
        content["env"] = {**environment, "parameters": parameters}
    elif env:
        content["env"] = env
    content["env_steps"] = max(part.settings.count("max_steps") for part in behaviors)
    snapshots = [_snapshots(part.settings, int(values.get("epoch_steps", EPOCH))) for part in behaviors]
    if snapshots[0] is not None:
        content["snapshots"] = snapshots[0]
    outside = dict(flat({name: part or {} for name, part in whole.items() if name not in READ}))
    if isinstance(seed := outside.pop("env_settings.seed", None), int) and seed >= 0:
        content["seed"] = seed
    if device := outside.pop("torch_settings.device", None):
        content["device"] = device
    content["hyperparameters"] = values
    left: dict[str, Any] = {}
    for converted in behaviors:
        prefix = f"{converted.name}." if len(behaviors) > 1 else ""
        left |= {
            f"{prefix}{path}": x for path, x in converted.settings.without(converted.content, converted.unknown).items()
        }
    return Converted(content, listed(left | outside))


class _Behavior(NamedTuple):
    """A behavior: its settings, and the hyperparameters that they become.

    Attributes:
        name: its name.
        trainer: name of the algorithm.
        content: its settings, by path.
        settings: those with defaults.
        values: hyperparameters, by dotted name.
        unknown: those that the algorithm lacks.
        self_play: those of self-play.
    """

    name: str
    trainer: str
    content: dict[str, Any]
    settings: Settings
    values: dict[str, Any]
    unknown: dict[str, Any]
    self_play: dict[str, Any]


def _converted(name: str, content: dict[str, Any], path: Path) -> _Behavior:
    """Convert a behavior.

    Raises:
        ValueError: a value is invalid, or the trainer has no counterpart.
    """
    trainer = content.pop("trainer_type", "ppo")
    if not isinstance(trainer, str) or trainer not in DEFAULTS:
        cure = "; write ppo, and set critic.central=joint of the behaviour afterwards" if trainer == "poca" else ""
        raise ValueError(
            f"only the trainers ppo and sac have counterparts, but behavior {name} has trainer_type {trainer!r}{cure}"
        )
    settings = Settings(_with_defaults(trainer, content), f"{path}: behavior {name}")
    values, space = _hyperparameters(trainer, settings), load(trainer).learner.hyperparameters
    unknown = {name: value for name, value in values.items() if name not in space.flat()}
    values = {name: value for name, value in values.items() if name not in unknown}
    try:
        space.validate(values)
    except SpaceError as error:
        raise ValueError(f"{path}: behavior {name} has a value that {trainer} does not take: {error}") from None
    self_play: dict[str, Any] = {}
    if settings.have("self_play."):
        options = {option: settings.take(f"self_play.{option}") for option in SELF_PLAY}
        if options["team_change"] is None:
            save_steps = settings.number("self_play.save_steps", 20_000) or 20_000  # both are ML-Agents' defaults
            options["team_change"] = 5 * int(save_steps)
        self_play = {"self_play.use": True} | {f"self_play.{k}": x for k, x in options.items() if x is not None}
    return _Behavior(name, trainer, content, settings, values, unknown, self_play)


def _shared(behaviors: Sequence[_Behavior]) -> dict[str, Any]:
    """Return the hyperparameters of behaviors that share environments.

    Rollouts of all end together, so an epoch is a whole number of the longest of them.
    """
    num_envs = max(part.values["num_envs"] for part in behaviors)
    block = math.lcm(*(part.values["num_steps"] for part in behaviors)) * num_envs
    shared: dict[str, Any] = {"num_envs": num_envs, "epoch_steps": max(1, round(EPOCH / block)) * block}
    for part in behaviors:
        fields = {"algorithm": part.trainer, **part.values, **part.self_play}
        if (parts := fields.get("num_minibatches")) is not None:
            fields["num_minibatches"] = _divisor(fields["num_steps"] * num_envs, parts * num_envs / fields["num_envs"])
        name = re.sub(r"\W|^(?=\d)", "_", part.name)  # hyperparameters are named after it
        shared |= {f"{name}.{key}": value for key, value in fields.items() if key not in shared}
    return shared


def _divisor(total: int, wanted: float) -> int:
    """Return the divisor of a number that is nearest to another one."""
    return min((n for n in range(1, total + 1) if total % n == 0), key=lambda n: abs(n - wanted))


def _with_defaults(trainer: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with ML-Agents' defaults for absent ones."""
    defaults, have = dict(DEFAULTS[trainer]), Settings(content).have
    for signal in SIGNALS:
        if have(prefix := f"reward_signals.{signal}."):
            lr = {"learning_rate": 1e-4} if signal == "rnd" else {"use_actions": False} if signal == "gail" else {}
            defaults |= {f"{prefix}{name}": value for name, value in (OF_SIGNALS | lr).items()}
            if (size := content.get(f"{prefix}encoding_size")) is not None:  # deprecated
                defaults[f"{prefix}network_settings.hidden_units"] = size
            if not have("reward_signals.extrinsic."):  # without it, ML-Agents learns from the other signals alone
                defaults["reward_signals.extrinsic.strength"] = 0.0
    if have("behavioral_cloning."):
        defaults |= {f"behavioral_cloning.{name}": value for name, value in OF_CLONING.items()}
        defaults["behavioral_cloning.batch_size"] = content.get(BATCH, defaults[BATCH])
    if have("network_settings.memory."):
        defaults |= MEMORY
    return defaults | {path: value for path, value in content.items() if value is not None}


def _behaviors(whole: Mapping[str, Any], path: Path, behavior: str | None) -> dict[str, dict[str, Any]]:
    """Return the settings of behaviors, by name and path."""
    behaviors = whole.get("behaviors")
    if not isinstance(behaviors, Mapping) or not behaviors:
        raise ValueError(f"an ML-Agents configuration has behaviors, but {path} has none")
    if behavior is not None and behavior not in behaviors:
        raise ValueError(f"{path} has no behavior {behavior!r}{near(behavior, list(behaviors))}")
    names = behaviors if behavior is None else [behavior]
    for part, content in {"default_settings": whole.get("default_settings"), **behaviors}.items():
        if not isinstance(content or {}, Mapping):
            raise ValueError(f"{path}: {part} must hold settings by name, but got {content!r}; mend it")
    default = dict(flat(whole.get("default_settings") or {}))
    return {name: default | dict(flat(behaviors[name] or {})) for name in names}


def _snapshots(settings: Settings, epoch_steps: int) -> str | None:
    """Return the value of `snapshots`, in whole epochs; None if unset."""
    keep, interval = settings.take("keep_checkpoints"), settings.take("checkpoint_interval")
    if keep is None and interval is None:
        return None
    kept = settings.count("keep_checkpoints", 5)  # ML-Agents' default
    if interval is None:
        return str(kept)
    return f"every:{max(1, round(settings.number('checkpoint_interval') / epoch_steps))}:{kept}"


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
    size, batch = (settings.count(f"hyperparameters.{name}") for name in ("buffer_size", "batch_size"))
    steps = min(settings.count("time_horizon", 64), size)
    envs = max(1, size // steps)
    return {"num_steps": steps, "num_envs": envs, "num_minibatches": _divisor(steps * envs, size / batch)}


def _memory_of_sac(settings: Settings) -> dict[str, Any]:
    values = {name: settings.count(f"hyperparameters.{name}") for name in ("buffer_size", "batch_size")}
    starts = settings.count("hyperparameters.buffer_init_steps", 0, "learning_starts", least=0)
    values["learning_starts"] = max(starts, values["batch_size"])  # the first batch needs as many
    steps = max(1, int(settings.number("hyperparameters.steps_per_update")))
    return values | {"num_envs": 1, "num_steps": steps, "num_updates": 1}


def _schedules(trainer: str, settings: Settings) -> dict[str, Any]:
    """Return the schedules.

    Those of beta and epsilon are the learning rate's, unless they are given.
    """
    values: dict[str, Any] = {}
    default = settings.take("hyperparameters.learning_rate_schedule")
    horizon = settings.count("max_steps")
    for theirs, (ours, last) in SCHEDULES.items():
        path = f"hyperparameters.{theirs}_schedule"
        if trainer == "sac" and theirs != "learning_rate" and path not in settings.values:
            continue
        schedule = settings.take(path, default, f"{ours}.name")
        values[f"{ours}.name"] = schedule
        if schedule != "linear":
            continue
        first = settings.number(f"hyperparameters.{theirs}", 0, DIRECT.get(f"hyperparameters.{theirs}"))
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
        values["model.encoder"] = ENCODERS.get(str(encoder), encoder)
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
