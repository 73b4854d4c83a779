"""Conversion of rl-zoo3's hyperparameters into run files.

A file such as `ppo.yml` holds the settings of one algorithm by environment. Names and defaults are those of
Stable-Baselines3 2.9, and what rl-zoo3 adds to them is described in its documentation, "Configuration":
https://rl-baselines3-zoo.readthedocs.io/en/master/guide/config.html. A schedule `lin_0.001` falls to 0 at
`n_timesteps`. No code of a file is run: expressions such as `dict(net_arch=[64])` are read as data.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....spaces.errors import SpaceError, near
from ....spaces.ranges import LARGEST_LOG
from ....tasks import load
from ....tasks.catalog import ALGORITHMS
from .settings import Converted, Settings, listed

TASKS = {"ppo_lstm": "ppo"} | {
    name: name for name in ("a2c", "ars", "crossq", "ddpg", "dqn", "her", "ppo", "qrdqn", "sac", "td3", "tqc", "trpo")
}
ON_POLICY = {
    **{"learning_rate": 3e-4, "n_steps": 2048, "gamma": 0.99, "gae_lambda": 0.95, "ent_coef": 0.0, "vf_coef": 0.5},
    **{"max_grad_norm": 0.5, "use_sde": False, "sde_sample_freq": -1, "normalize_advantage": True},
}
PPO = ON_POLICY | {"batch_size": 64, "n_epochs": 10, "clip_range": 0.2, "clip_range_vf": None, "target_kl": None}
TRPO = {name: value for name, value in ON_POLICY.items() if name not in ("ent_coef", "vf_coef", "max_grad_norm")}
TRPO |= {"learning_rate": 1e-3, "batch_size": 128, "target_kl": 0.01, "cg_max_steps": 15, "cg_damping": 0.1}
TRPO |= {"line_search_shrinking_factor": 0.8, "line_search_max_iter": 10, "n_critic_updates": 10}
TRPO |= {"sub_sampling_factor": 1}
ARS = {"n_delta": 8, "n_top": None, "learning_rate": 0.02, "delta_std": 0.05, "zero_policy": True}
ARS |= {"alive_bonus_offset": 0, "n_eval_episodes": 1}
OFF_POLICY = {
    **{"buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 256, "gamma": 0.99, "train_freq": 1},
    **{"gradient_steps": 1, "n_steps": 1},
}
DQN = OFF_POLICY | {
    **{"learning_rate": 1e-4, "batch_size": 32, "train_freq": 4, "tau": 1.0, "target_update_interval": 10_000},
    **{"exploration_fraction": 0.1, "exploration_initial_eps": 1.0, "exploration_final_eps": 0.05, "max_grad_norm": 10},
}
SOFT = OFF_POLICY | {"ent_coef": "auto", "target_entropy": "auto", "use_sde": False, "sde_sample_freq": -1}
SAC = SOFT | {"learning_rate": 3e-4, "tau": 0.005, "target_update_interval": 1}
DDPG = OFF_POLICY | {"learning_rate": 1e-3, "tau": 0.005}
TD3 = DDPG | {"policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5}
DEFAULTS: dict[str, dict[str, Any]] = {  # of Stable-Baselines3, by algorithm
    "ppo": PPO,
    "ppo_lstm": PPO | {"n_steps": 128, "batch_size": 128},
    "a2c": ON_POLICY
    | {"learning_rate": 7e-4, "n_steps": 5, "gae_lambda": 1.0, "use_rms_prop": True, "rms_prop_eps": 1e-5}
    | {"normalize_advantage": False},
    "dqn": DQN,
    "qrdqn": DQN
    | {"learning_rate": 5e-5, "exploration_fraction": 0.005, "exploration_final_eps": 0.01, "max_grad_norm": None},
    "sac": SAC,
    "tqc": SAC | {"top_quantiles_to_drop_per_net": 2},
    "crossq": SOFT | {"learning_rate": 1e-3, "policy_delay": 3},
    "td3": TD3,
    "ddpg": DDPG,
    "trpo": TRPO,
    "ars": ARS,
}
ARCHITECTURES: dict[str, Any] = {
    "ppo": [64, 64],
    "ppo_lstm": [64, 64],
    "a2c": [64, 64],
    "dqn": [64, 64],
    "qrdqn": [64, 64],
    "trpo": [64, 64],
    "ars": [64, 64],
}
ARCHITECTURES |= {"sac": [256, 256], "tqc": [256, 256], "td3": [400, 300], "ddpg": [400, 300]}
ARCHITECTURES |= {"crossq": {"pi": [256, 256], "qf": [1024, 1024]}}
DIRECT = {
    **{name: name for name in ("gamma", "gae_lambda", "max_grad_norm", "use_sde", "target_kl", "normalize_advantage")},
    **{name: name for name in ("buffer_size", "tau", "policy_delay", "target_policy_noise", "target_noise_clip")},
    **{"n_envs": "num_envs", "n_epochs": "update_epochs", "top_quantiles_to_drop_per_net": "dropped_quantiles"},
    **{"exploration_initial_eps": "exploration.start", "exploration_final_eps": "exploration.final"},
    **{name: name for name in ("cg_damping", "delta_std", "zero_policy", "alive_bonus_offset", "stats_window_size")},
    **{"cg_max_steps": "cg_steps", "line_search_shrinking_factor": "line_search_factor", "n_delta": "deltas"},
    **{"line_search_max_iter": "line_search_steps", "n_critic_updates": "update_epochs"},
}
NATURE = 512  # features of Stable-Baselines3's encoder of images
LEAST = 1e-12  # where a schedule that ends at 0 ends here
NOISES = {"normal": "gaussian", "ornstein-uhlenbeck": "ou"}
ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "SiLU": "silu"}
OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw", "SGD": "sgd", "RMSprop": "rmsprop", "RMSpropTFLike": "rmsprop"}
NORMALIZE = {"norm_obs": True, "norm_reward": True, "clip_obs": 10.0, "clip_reward": 10.0, "epsilon": 1e-8}
INERT = ("verbose", "tensorboard_log", "optimize_memory_usage")  # settings that change no result
ABSENT: tuple[Any, ...] = (None, "", {}, [])


def is_of_zoo(whole: Mapping[str, Any]) -> bool:
    """Return whether a file holds settings by environment."""
    entries = [entry for entry in whole.values() if isinstance(entry, Mapping)]
    return bool(entries) and all("n_timesteps" in entry or "policy" in entry for entry in entries)


def convert(
    path: Path, whole: Mapping[str, Any], env: str | Mapping[str, Any] | None, entry: str | None, algorithm: str | None
) -> Converted:
    """Return the run file of one environment's settings.

    Args:
        path: path of the file.
        whole: its content.
        env: environment.
        entry: name of the entry; None for the environment's, or as rl-zoo3 chooses it.
        algorithm: name of the algorithm; None if the file has its name.

    Raises:
        ValueError: a value is invalid, or the algorithm has no counterpart.
    """
    name = _entry(path, whole, env, entry)
    settings = _settings(whole[name], f"{path}: {name}")
    of_file = algorithm or path.stem
    if of_file == "her":  # a file of rl-zoo3 before 1.1, where HER was an algorithm
        of_file = settings.pop("model_class", "sac")
        old = {"n_sampled_goal", "goal_selection_strategy"}
        settings |= {f"replay_buffer_kwargs.{key}": settings.pop(key) for key in old & settings.keys()}
        settings["replay_buffer_class"] = "HerReplayBuffer"
    if of_file not in TASKS:
        names = ", ".join(TASKS)
        raise ValueError(
            f"an rl-zoo file has the name of its algorithm ({names}), but got {of_file!r}{near(of_file, TASKS)}; give "
            "--algo"
        )
    if TASKS[of_file] not in ALGORITHMS or of_file not in DEFAULTS:
        names = ", ".join(sorted(name for name in DEFAULTS if TASKS[name] in ALGORITHMS))
        raise ValueError(f"{path}: {of_file} has no counterpart here; these have: {names}")
    return _Entry(of_file, settings, env if env is not None else name, f"{path}: {name}").converted()


def _entry(path: Path, whole: Mapping[str, Any], env: str | Mapping[str, Any] | None, entry: str | None) -> str:
    """Return the name of an environment's settings, as rl-zoo3 chooses them."""
    named = env["id"] if isinstance(env, Mapping) else env
    suffix = (named or "").rpartition(":")[2]
    atari = suffix.startswith("ALE/") or "NoFrameskip" in suffix
    if entry is None:
        entry = suffix if suffix in whole else "atari" if atari and "atari" in whole else None
        entry = entry or ("default" if suffix and "default" in whole else None)
    if entry is None and named is None and len(whole) == 1:
        entry = next(iter(whole))
    if named is None and entry in ("atari", "default"):
        raise ValueError(f"{path}: {entry} has settings for many environments; name one with --env")
    if entry is None or entry not in whole or not isinstance(whole[entry], Mapping):
        raise ValueError(
            f"{path} has settings of {', '.join(whole)}, but none of {entry or named or 'an environment'}"
            f"{near(entry or suffix, list(whole))}; name the environment, or one of these with --entry"
        )
    return entry


def _settings(entry: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Return an entry's settings, those of nested ones by path."""
    settings: dict[str, Any] = {}
    for name, value in entry.items():
        if name in ("policy_kwargs", "replay_buffer_kwargs", "normalize", "monitor_kwargs") and isinstance(value, str):
            value = _expression(value, f"{location}: {name}")
        if name in ("policy_kwargs", "replay_buffer_kwargs", "env_kwargs", "normalize") and isinstance(value, Mapping):
            settings |= {f"{name}.{key}": entry for key, entry in value.items()}
        else:
            settings[name] = value
    return settings


def _expression(text: str, location: str) -> Any:
    """Return the value of a Python expression of literals, dict() and names.

    A name, such as nn.ReLU, becomes its last part.
    """

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.UnaryOp(op=ast.USub()):
                return -value(node.operand)
            case ast.List() | ast.Tuple():
                return [value(element) for element in node.elts]
            case ast.Dict():
                return {value(k): value(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
            case ast.Call(func=ast.Name(id="dict"), args=[]):
                return {keyword.arg: value(keyword.value) for keyword in node.keywords}
            case ast.Name():
                return node.id
            case ast.Attribute():
                return node.attr
        raise ValueError(ast.unparse(node))

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{location} must be a Python expression of literals and dict(), but got {error}") from None


class _Entry:
    """Settings of one entry, and the run file they become.

    Attributes:
        values: hyperparameters by name.
        departures: settings that became something a little different.
    """

    def __init__(self, algorithm: str, settings: Mapping[str, Any], env: str | Mapping[str, Any], location: str):
        """Hold an entry; `location` names it in error messages."""
        self.algorithm, self.entry, self.env = algorithm, settings, env
        self.task = TASKS[algorithm]
        self.settings = Settings(DEFAULTS[algorithm] | {"n_envs": 1} | dict(settings), location)
        self.space = load(self.task).learner.hyperparameters.flat()
        self.values: dict[str, Any] = {}
        self.departures: list[str] = []
        policy = str(self.take("policy", default=""))
        self.images, self.memory, self.linear = policy.startswith("Cnn"), "Lstm" in policy, policy.startswith("Linear")
        self.steps = self.settings.count("n_timesteps", 0, least=0)
        self.num_envs = self.count("n_envs", "num_envs")

    def take(self, path: str, name: str | None = None, default: Any = None) -> Any:
        return self.settings.take(path, default, name)

    def number(self, path: str, name: str | None = None, default: Any = None) -> float:
        return self.settings.number(path, default, name)

    def count(self, path: str, name: str | None = None, least: int = 1) -> int:
        return self.settings.count(path, name=name, least=least)

    def set(self, path: str, name: str, value: Any) -> None:
        """Set the hyperparameter that a setting becomes."""
        self.settings.names[path] = name
        self.values[name] = value

    def depart(self, path: str, instead: str) -> None:
        """List a setting that became something else."""
        self.departures.append(f"{path}: {self.settings.values.get(path)} ({instead})")

    def converted(self) -> Converted:
        """Return the run file."""
        for path, name in DIRECT.items():
            if path in self.settings.values:
                self.set(path, name, self.take(path))
        if self.algorithm == "ars":
            self._random_search()
        else:
            self._learning_rate()
            self._network()
            self._rollouts() if "gae_lambda" in DEFAULTS[self.algorithm] else self._replay()
        self._normalization()
        unknown = {name: value for name, value in self.values.items() if name not in self.space}
        values = {name: value for name, value in self.values.items() if name in self.space}
        try:
            load(self.task).learner.hyperparameters.validate(values)
        except SpaceError as error:
            raise ValueError(f"{self.settings.location} has a value that {self.task} does not take: {error}") from None
        content: dict[str, Any] = {"task": self.task, "env": self._environment()}
        if self.steps:
            content["env_steps"] = self.steps
        for name in ("seed", "device"):
            if (value := self.take(name)) is not None:
                content[name] = value
        content["hyperparameters"] = values
        for name in INERT:
            self.take(name)
        left = self.settings.without(self.entry, unknown)
        return Converted(content, [*listed(left, ABSENT), *self.departures])

    def _number(self, path: str, name: str, schedule: str) -> None:
        """Set a coefficient and its schedule."""
        value = self.take(path, name)
        if isinstance(value, str):
            shape, _, first = value.partition("_")
            if shape != "lin":
                raise ValueError(
                    f"{self.settings.location}: {path} must be a number or a linear schedule such as lin_0.001, but "
                    f"got {value!r}"
                )
            value = self.settings.as_number(path, first)
            if not self.steps:
                self.depart(path, "constant, as there is no n_timesteps to fall over")
            else:
                self.values |= {f"{schedule}.name": "linear", f"{schedule}.horizon": self.steps}
                if f"{schedule}.final" in self.space and schedule != "lr_schedule":
                    self.values[f"{schedule}.final"] = LEAST
        elif value is not None and (value := self.settings.as_number(path, value)) < 0:
            value = None  # no clipping
        self.values[name] = value

    def _learning_rate(self) -> None:
        self._number("learning_rate", "optimizer.lr", "lr_schedule")
        on_policy = "gae_lambda" in self.settings.values
        optimizer, eps = ("Adam", 1e-5 if on_policy else 1e-8)
        if self.algorithm == "qrdqn":
            eps = 0.01 / self.count("batch_size", "batch_size")
        if self.take("use_rms_prop", "optimizer.name"):
            optimizer, eps = "RMSprop", self.number("rms_prop_eps", "optimizer.eps")
        else:
            self.take("rms_prop_eps")
        optimizer = self.take("policy_kwargs.optimizer_class", "optimizer.name", optimizer)
        options = self.settings.mapping("policy_kwargs.optimizer_kwargs", "optimizer.eps")
        if str(optimizer) not in OPTIMIZERS:
            self.depart("policy_kwargs.optimizer_class", "Adam instead")
            optimizer = "Adam"
        if optimizer == "RMSpropTFLike":
            self.depart("policy_kwargs.optimizer_class", "RMSprop, whose eps is outside of the root")
        values = {"name": OPTIMIZERS[optimizer], "eps": self.settings.as_number("eps", options.pop("eps", eps))}
        if optimizer != "AdamW" and not options.get("weight_decay"):
            options.pop("weight_decay", None)
        betas = options.pop("betas", [0.5, 0.999] if self.algorithm == "crossq" else [0.9, 0.999])
        if not isinstance(betas, list) or len(betas) != 2:
            raise ValueError(f"{self.settings.location}: betas must be two numbers, but got {betas!r}; mend it")
        if values["name"] in ("adam", "adamw"):
            values |= {"beta1": betas[0], "beta2": betas[1]}
        if values["name"] == "rmsprop":
            values["alpha"] = options.pop("alpha", 0.99)
        values |= {name: options.pop(name) for name in ("momentum", "weight_decay") if name in options}
        if optimizer == "SGD":
            del values["eps"]
        self.departures += [f"policy_kwargs.optimizer_kwargs.{name}: {value}" for name, value in options.items()]
        self.values |= {f"optimizer.{name}": value for name, value in values.items()}
        for name in {"critic_lr", "entropy.lr"} & self.space.keys():
            self.values[name] = None

    def _network(self) -> None:
        """Set the networks, and the initial deviation, which depends on their width."""
        actor = self._layers()
        self._activation()
        self._critics()
        if self.memory:
            self.values["model.memory"] = "lstm"
            if self.take("policy_kwargs.enable_critic_lstm", default=True) is True:
                self.departures.append("a memory of the critic's own (the actor's is shared)")
        self._deviation(actor[-1])

    def _layers(self) -> list[int]:
        """Set the units of hidden layers; return those of the actor."""
        kwargs = "policy_kwargs."
        architecture = self.take(f"{kwargs}net_arch", "model.hidden")
        if architecture is None:
            architecture = [] if self.images else ARCHITECTURES[self.algorithm]
        actor, critic = self._units(architecture)
        if self.images:
            features = self.settings.mapping(f"{kwargs}features_extractor_kwargs", "model.hidden")
            first = [self.settings.as_count("features_dim", features.pop("features_dim", NATURE))]
            actor, critic = [first[0], *actor], [first[0], *critic]
            self.values["model.encoder"] = "nature"
            self.values["model.shared_critic"] = actor == critic == first
        if self.memory:
            width = self.take(f"{kwargs}lstm_hidden_size", "model.width", 256)
            self.values["model.width"] = width
            if not (actor and critic):
                self.depart(f"{kwargs}net_arch", f"a layer of {width} units where there is none")
                actor, critic = (part or [width] for part in (actor, critic))
        if not (actor and critic):
            raise ValueError(f"networks have hidden layers, but {kwargs}net_arch is {architecture}; give one a layer")
        if len({*actor}) == 1 and not self.memory:
            self.values |= {"model.width": actor[0], "model.layers": len(actor)}
        else:
            self.values["model.hidden"] = actor
        if critic != actor:
            self.values["model.critic_hidden"] = critic
        return actor

    def _units(self, architecture: Any) -> tuple[list[int], list[int]]:
        """Return the units of the actor's and of the critic's hidden layers.

        Before Stable-Baselines3 1.8, a list's last element told those apart, and layers before it were shared.
        """
        setting = "policy_kwargs.net_arch"
        *shared, last = architecture if isinstance(architecture, list) and architecture else [None]
        if not isinstance(last, Mapping):
            shared, last = [], architecture
        elif shared:
            self.depart(setting, f"{shared} for each of actor and critic, which share none")
        parts = last if isinstance(last, Mapping) else {"pi": last, "vf": last}
        both = parts.get("pi", []), parts.get("vf", parts.get("qf", []))
        if not all(isinstance(part, list | tuple | None) for part in both):
            law = f"{self.settings.location}: {setting} must be a list of units, or one for each of pi and vf"
            raise ValueError(f"{law}, but got {architecture!r}; mend it")
        actor, critic = (
            [self.settings.as_count(setting, units) for units in [*shared, *(part or ())]] for part in both
        )
        return actor, critic

    def _activation(self) -> None:
        """Set the activation of hidden layers."""
        default = "ReLU" if self.images or "gae_lambda" not in self.settings.values else "Tanh"
        activation = self.take("policy_kwargs.activation_fn", "model.activation", default)
        if str(activation) not in ACTIVATIONS or ACTIVATIONS[activation] not in self.space["model.activation"].values:
            self.depart("policy_kwargs.activation_fn", f"{default} instead")
            activation = default
        self.values["model.activation"] = ACTIVATIONS[activation]

    def _critics(self) -> None:
        """Set the number of critics and of their quantiles."""
        if "model.dueling" in self.space:
            self.values |= {"model.dueling": False, "double": False}  # theirs have neither
        setting = "policy_kwargs.n_critics"
        if (copies := self.take(setting)) is not None:
            names = sorted({"critic.ensemble", "critic.subset", "critics"} & self.space.keys())
            if not names and copies != (1 if self.task == "ddpg" else 2):
                del self.settings.names[setting]
            elif copies < 2 and "critic.ensemble" in names:
                self.depart(setting, "two critics instead")
            else:
                for name in names:
                    self.set(setting, name, copies)
        if (quantiles := self.take("policy_kwargs.n_quantiles", "quantiles")) is not None:
            self.values["quantiles"] = quantiles

    def _deviation(self, width: int) -> None:
        """Set the initial deviation of actions."""
        on_policy, sde = "gae_lambda" in self.settings.values, bool(self.take("use_sde", "use_sde"))
        log_std = self.number("policy_kwargs.log_std_init", default=0.0 if on_policy else -3.0)
        size = math.sqrt(width) if sde else 1  # our deviation is that of the action where all z are 1
        std = math.exp(min(log_std, LARGEST_LOG)) * size
        if on_policy:
            self.set("policy_kwargs.log_std_init", "model.std_init", std)
        elif sde:
            self.set("policy_kwargs.log_std_init", "sde_std_init", std)
            self.set("policy_kwargs.clip_mean", "sde_clip_mean", self.take("policy_kwargs.clip_mean", default=2.0))
        every = self.take("sde_sample_freq", "sde_sample_freq", -1)
        if sde:
            self.values["sde_sample_freq"] = every if on_policy or every != -1 else self._train_freq()

    def _rollouts(self) -> None:
        steps = self.count("n_steps", "num_steps")
        self.values["num_steps"] = steps
        if "ent_coef" in self.space:
            self.values["ent_coef"] = self.take("ent_coef", "ent_coef")
            self.values["vf_coef"] = 2 * self.number("vf_coef", "vf_coef")  # their value loss lacks the factor 1/2
        total = self.num_envs if self.memory else steps * self.num_envs
        if self.take("batch_size", "num_minibatches") is not None:
            size = steps * self.num_envs
            wanted = max(1, size / self.count("batch_size", "num_minibatches"))
            parts = min(_divisors(total), key=lambda count: abs(math.log(count / wanted)))
            self.values["num_minibatches"] = parts
            if parts != wanted:
                of = " of whole environments" if self.memory else ""
                self.depart("batch_size", f"num_minibatches = {parts},{of} {size // parts} steps each")
        if "clip_range" in self.settings.values:
            self._number("clip_range", "clip_coef", "clip_coef_schedule")
            self._number("clip_range_vf", "clip_value", "clip_value_schedule")

    def _random_search(self) -> None:
        rate = self.take("learning_rate", "lr")
        if isinstance(rate, str):
            self.depart("learning_rate", "constant instead")
            rate = rate.partition("_")[2]
        self.values["lr"] = self.settings.as_number("learning_rate", rate)
        directions = self.count("n_delta", "deltas")
        self.values["top_fraction"] = self.settings.count("n_top", directions, "top_fraction") / directions
        if self.linear:
            self.values["model.layers"] = 0
            self.depart("policy", "with biases")
            return
        widths, _ = self._units(self.take("policy_kwargs.net_arch", "model.hidden", ARCHITECTURES["ars"]))
        self.values |= {"model.hidden": widths} if widths else {"model.layers": 0}
        self._activation()
        if self.take("policy_kwargs.squash_output", default=True):
            self.departures.append("policy_kwargs.squash_output: True (actions in a Box are clipped instead)")

    def _train_freq(self) -> int:
        value = self.settings.values["train_freq"]
        count, unit = value if isinstance(value, list) and len(value) == 2 else (value, "step")
        return self.settings.as_count("train_freq", count) if unit == "step" else 1

    def _replay(self) -> None:
        frequency, gradients = (
            self.take("train_freq", "num_steps"),
            self.count("gradient_steps", "num_updates", least=-1),
        )
        steps = self._train_freq()
        if isinstance(frequency, list) and frequency[1] != "step":
            self.depart("train_freq", f"{steps} step instead, with one gradient step per environment step")
            gradients = -1
        updates = steps * self.num_envs if gradients < 0 else gradients
        self.values |= {"num_steps": steps, "num_updates": max(1, updates)}
        batch, starts = (
            self.count("batch_size", "batch_size"),
            self.count("learning_starts", "learning_starts", least=0),
        )
        n_step = self.count("n_steps", "n_step")
        least = max(batch, n_step * self.num_envs)
        if starts < least:
            self.depart("learning_starts", f"{least}, which a batch needs")
        self.values |= {"batch_size": batch, "learning_starts": max(starts, least), "n_step": n_step}
        if "exploration.horizon" in self.space:
            fraction = self.number("exploration_fraction", "exploration.horizon")
            if self.steps:
                self.values["exploration.horizon"] = max(1, round(fraction * self.steps))
            else:
                self.depart("exploration_fraction", "the default of exploration.horizon, as there is no n_timesteps")
        interval = self.take("target_update_interval")
        interval = None if interval is None else self.count("target_update_interval", least=0)
        if "target_interval" in self.space:  # in gradient steps, theirs in environment steps, between gradient steps
            of_steps = max((interval or 1) // self.num_envs, 1) * updates / steps
            self.set("target_update_interval", "target_interval", max(1, updates, round(of_steps)))
        elif interval is not None:
            self.set("target_update_interval", "target_update_interval", interval)
        self._entropy()
        self._noise()
        if self.take("replay_buffer_class") == "HerReplayBuffer":
            goals = self.settings.count("replay_buffer_kwargs.n_sampled_goal", 4)
            strategy = self.take("replay_buffer_kwargs.goal_selection_strategy", default="future")
            self.set("replay_buffer_class", "replay.relabel", strategy)
            self.set("replay_buffer_kwargs.goal_selection_strategy", "replay.relabel", strategy)
            self.set("replay_buffer_kwargs.n_sampled_goal", "replay.relabel_ratio", goals / (1 + goals))
        elif self.entry.get("replay_buffer_class") is not None:
            del self.settings.names["replay_buffer_class"]

    def _entropy(self) -> None:
        if "entropy.alpha" not in self.space:
            return
        coefficient = self.take("ent_coef", "entropy.alpha")
        learned = isinstance(coefficient, str)
        auto, _, first = coefficient.partition("_") if learned else ("auto", "", coefficient)
        if auto != "auto":
            raise ValueError(
                f"{self.settings.location}: ent_coef must be a number or auto, such as auto_0.1, but got "
                f"{coefficient!r}; mend it"
            )
        alpha = self.settings.as_number("ent_coef", first or 1.0)
        self.values |= {"entropy.learn": learned, "entropy.alpha": alpha}
        target = self.take("target_entropy")
        if target not in (None, "auto"):
            del self.settings.names["target_entropy"]  # depends on the number of actions
            self.depart("target_entropy", "set entropy.target to minus it, divided by the numbers of an action")

    def _noise(self) -> None:
        noise, std = self.take("noise_type", "exploration.noise"), self.take("noise_std", "exploration.std", 0.1)
        if "exploration.noise" not in self.space:
            return
        if noise is None:
            self.values["exploration.noise"] = "none"
            return
        ours = next((ours for theirs, ours in NOISES.items() if theirs in str(noise)), None)
        if ours is None:
            law = f"{self.settings.location}: noise_type must be {' or '.join(NOISES)}"
            raise ValueError(f"{law}, but got {noise!r}; mend it")
        if ours == "ou":
            self.depart("noise_type", "correlated for a hundredth of the time, as in the paper")
        self.values |= {"exploration.noise": ours, "exploration.std": std}

    def _normalization(self) -> None:
        values = {name: self.take(f"normalize.{name}", default=value) for name, value in NORMALIZE.items()}
        on = self.take("normalize", default=any(path.startswith("normalize.") for path in self.entry)) is True
        self.take("normalize.gamma")
        of_obs, of_reward = (bool(values.pop(name)) and on for name in ("norm_obs", "norm_reward"))
        if self.images and of_obs:
            self.departures.append("normalize.norm_obs: True (images are not normalized)")
            of_obs = False
        for name, value in values.items():
            if value != NORMALIZE[name]:
                del self.settings.names[f"normalize.{name}"]
        self.set("normalize.norm_obs", "normalize_obs", of_obs)
        reward = "normalize_reward" if "normalize_reward" in self.space else "scale_reward"
        self.set("normalize.norm_reward", reward, of_reward)
        if reward not in self.space and of_reward:
            self.departures.append("normalize.norm_reward: True (rewards are as they are)")

    def _environment(self) -> str | dict[str, Any]:
        """Return the environment with what rl-zoo3 wraps around it."""
        spec: dict[str, Any] = dict(self.env) if isinstance(self.env, Mapping) else {"id": self.env}
        kwargs = {name.partition(".")[2]: self.take(name) for name in self.entry if name.startswith("env_kwargs.")}
        wrappers = [*spec.get("wrappers", []), *map(self._wrapper, _names(self.take("env_wrapper")))]
        if frames := self.take("frame_stack"):
            stack = {"stack_size": self.settings.as_count("frame_stack", frames), "padding_type": "zero"}
            wrappers.append({"entry_point": "gymnasium.wrappers:FrameStackObservation", "kwargs": stack})
        if kwargs:
            spec["kwargs"] = kwargs | dict(spec.get("kwargs", {}))
        if wrappers:
            spec["wrappers"] = wrappers
        return spec if len(spec) > 1 else spec["id"]

    def _wrapper(self, named: Any) -> dict[str, Any]:
        """Return a wrapper of rl-zoo3, a dotted name with or without arguments."""
        name, kwargs = next(iter(named.items())) if isinstance(named, Mapping) and len(named) == 1 else (named, None)
        if not isinstance(name, str) or not isinstance(kwargs or {}, Mapping):
            raise ValueError(
                f"{self.settings.location}: env_wrapper must be names such as package.Wrapper, or each one with its "
                f"arguments, but got {named!r}; mend it"
            )
        module, _, cls = name.rpartition(".")
        if module.startswith("gymnasium.wrappers."):  # whose modules had other names
            module = "gymnasium.wrappers"
        return {"entry_point": f"{module}:{cls}"} | ({"kwargs": dict(kwargs)} if kwargs else {})


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]


def _names(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
