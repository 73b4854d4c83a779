"""Policies of Stable-Baselines3: the networks in a file that its `save` wrote.

PPO, A2C, DQN, SAC, TD3 and DDPG are read, and of its contributions TQC, CrossQ, QRDQN, TRPO, ARS, RecurrentPPO and
MaskablePPO: with an MlpPolicy, ARS also with a LinearPolicy, and PPO, A2C, TRPO, DQN and QRDQN with a CnnPolicy for
images, too. No code from the file is run: weights
are read as tensors only, and the pickled data next to them is not read at all. Greedy actions are those of the model.
If it saw normalized observations, the statistics come from the file that its VecNormalize wrote.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..errors import StateMismatch

Layer = tuple[Tensor, Tensor]
ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "SiLU": "silu", "ELU": "elu"}
NORMALIZATION = {"clip_obs": 10.0, "epsilon": 1e-8}  # as of `experience.normalizers`
ARRAYS = {"numpy.ndarray", "numpy.dtype", *(f"numpy._core.multiarray.{name}" for name in ("scalar", "_reconstruct"))}
NETWORKS = "networks are those of an MlpPolicy or CnnPolicy"
SOURCES = (
    "a policy is taken from a PPO, A2C, DQN, SAC, TD3, DDPG, TQC, CrossQ, QRDQN, TRPO, ARS, RecurrentPPO or MaskablePPO"
)
COPIES = (
    "q_net_target.",
    "quantile_net_target.",
    "critic_target.",
    "actor_target.",
    "pi_features_extractor.",
    "vf_features_extractor.",
)
GATES = (0, 1, 3, 2)  # of torch's LSTM, in our order: input, forget and output gate, cell


@dataclass(frozen=True)
class ImportedPolicy:
    """Networks of another library, in the form that a warm start takes.

    Attributes:
        task: name of the algorithm.
        hyperparameters: the hyperparameters that the networks need, nested.
        policy: parameters by name, for `warm_start`.
    """

    task: str
    hyperparameters: dict[str, Any]
    policy: dict[str, Tensor]


class _Model:
    """The contents of a file."""

    def __init__(self, path: Path, data: Mapping[str, Any], weights: dict[str, Tensor]):
        self.path, self.data, self.weights = path, data, weights
        self.used_names: set[str] = set()  # names of weights
        kwargs = data.get("policy_kwargs")
        self.kwargs: Mapping[str, Any] = kwargs if isinstance(kwargs, Mapping) else {}

    def refuse(self, law: str, got: str) -> StateMismatch:
        return StateMismatch(f"{self.path}: {law}, but got {got}")

    def layers(self, prefix: str) -> list[Layer]:
        """Return the layers of a torch.nn.Sequential, in order."""
        matches = (re.fullmatch(rf"{re.escape(prefix)}\.(\d+)\.weight", name) for name in self.weights)
        return [self.layer(f"{prefix}.{index}") for index in sorted(int(match[1]) for match in matches if match)]

    def layer(self, name: str) -> Layer:
        weight, bias = self.take(f"{name}.weight"), self.take(f"{name}.bias")
        if weight.ndim not in (2, 4) or not weight.is_floating_point() or bias.shape != weight.shape[:1]:
            raise self.refuse(NETWORKS, f"{name}, which is not one of their layers")
        return weight, bias

    def take(self, name: str) -> Tensor:
        self.used_names.add(name)
        return self.weights[name]

    def check_whole(self) -> None:
        """Refuse networks of which a part was left out.

        Without it they would act differently.
        """
        left = [name for name in self.weights if name not in self.used_names and not name.startswith(COPIES)]
        if left:
            raise self.refuse(NETWORKS, f"{left[0]} too")

    def features(self, prefix: str) -> tuple[dict[str, Tensor], list[Layer]]:
        """Return an encoder's filters by our names, and its dense layer."""
        if not any(name.startswith(f"{prefix}.cnn.") for name in self.weights):
            return {}, []
        if self.kwargs.get("normalize_images") is False:
            raise self.refuse("images are bytes over 255", "a model with normalize_images=False")
        filters: dict[str, Tensor] = {}
        for index, (weight, bias) in enumerate(self.layers(f"{prefix}.cnn")):
            filters |= {f"features.conv{index}.weight": weight, f"features.conv{index}.bias": bias}
        return filters, [self.layer(f"{prefix}.linear.0")]

    def activation(self, default: str, images: bool, hidden: Sequence[Layer]) -> str:
        """Return our name of the activation."""
        named = self.kwargs.get("activation_fn")
        activation = default if named is None else str(named).rpartition(".")[2].rstrip("'>")
        if images and not hidden:
            return "relu"  # the encoder's dense layer is the only hidden layer, and it has ReLU
        if activation not in ACTIVATIONS or (images and activation != "ReLU"):
            law = "activations are " + ("ReLU, as behind the images" if images else ", ".join(ACTIVATIONS))
            raise self.refuse(law, activation)
        return ACTIVATIONS[activation]


def import_policy(path: str | os.PathLike[str], vec_normalize: str | os.PathLike[str] | None = None) -> ImportedPolicy:
    """Return the networks of a model that Stable-Baselines3 saved.

    Args:
        path: .zip file that `model.save` wrote.
        vec_normalize: .pkl file that its VecNormalize's `save` wrote, if observations were normalized.

    Raises:
        StateMismatch: it is not such a file, or its networks or statistics have no counterpart.
    """
    networks = _networks(Path(path))
    if vec_normalize is None:
        return networks
    statistics, scales_rewards = _statistics(Path(vec_normalize))
    policy = networks.policy | {f"obs_normalizer.{name}": x for name, x in statistics.items()}
    hyperparameters = networks.hyperparameters | {"normalize_obs": True}
    if "normalize_reward" in hyperparameters:
        hyperparameters["normalize_reward"] = scales_rewards
    return replace(networks, policy=policy, hyperparameters=hyperparameters)


def _networks(path: Path) -> ImportedPolicy:
    try:
        with zipfile.ZipFile(path) as archive:
            data, weights = json.loads(archive.read("data")), io.BytesIO(archive.read("policy.pth"))
        tensors = torch.load(weights, map_location="cpu", weights_only=True)
        model = _Model(path, data, {str(name): tensor.detach().clone() for name, tensor in tensors.items()})
    except Exception as error:  # noqa: BLE001 - what is damaged may raise anything
        reason = getattr(error, "strerror", None) or str(error).partition(".")[0]
        raise StateMismatch(f"{path} must be a model that Stable-Baselines3 saved, but: {reason}") from None
    for mark, convert in CONVERTERS.items():
        if any(name.startswith(mark) for name in model.weights):
            try:
                converted = convert(model)
            except KeyError as error:
                raise model.refuse(NETWORKS, f"none named {error}") from None
            model.check_whole()
            return converted
    some = ", ".join(list(model.weights)[:3])
    raise model.refuse(SOURCES, f"networks named {some}, ...")


def _actor_critic(model: _Model) -> ImportedPolicy:
    pairs = [(x, model.weights.get(name.replace("pi_features", "vf_features"))) for name, x in model.weights.items()]
    if any(other is not None and not torch.equal(x, other) for x, other in pairs):
        raise model.refuse("actor and critic share the encoder of images", "share_features_extractor=False")
    filters, dense = model.features("features_extractor")
    pi, vf = (model.layers(f"mlp_extractor.{name}_net") for name in ("policy", "value"))
    activation = model.activation("Tanh", bool(filters), [*pi, *vf])
    actor, critic = [*dense, *pi, model.layer("action_net")], [*dense, *vf, model.layer("value_net")]
    shape = _shape(model, activation, actor[:-1], critic[:-1])
    memory: dict[str, Tensor] = {}
    if "lstm_actor.weight_ih_l0" in model.weights:
        if filters:
            raise model.refuse("memories are of vectors, as a layer stands between images and memory", "a CnnPolicy")
        memory, actor, critic = _memory(model, actor, critic)
        shape |= {"memory": "lstm", "width": len(memory["memory.hidden.weight"]), "hidden": _widths(actor[:-1])}
        shape.pop("layers", None)
    policy = filters | memory | _named("actor", actor) | _named("critic", critic)
    if "log_std" in model.weights:
        policy["actor.log_std"] = _log_std(model, len(actor[-1][1]))
    hyperparameters: dict[str, Any] = {"model": shape}
    hyperparameters["normalize_reward"] = False  # the critic's values are in units of the environment's rewards
    if model.data.get("use_sde"):
        hyperparameters["use_sde"] = True
    marks = {"clip_range": "ppo", "cg_max_steps": "trpo"}  # the networks alone look like those of A2C
    task = next((name for mark, name in marks.items() if mark in model.data), "a2c")
    return ImportedPolicy(task, hyperparameters, policy)


def _log_std(model: _Model, actions: int, name: str = "log_std") -> Tensor:
    """Return log deviations: a row, or one for each activation (use_sde)."""
    if model.kwargs.get("squash_output"):
        raise model.refuse("actions of PPO and A2C are clipped", "squash_output=True")
    log_std = model.take(name)
    if not model.data.get("use_sde"):
        return log_std.unsqueeze(0)
    if model.kwargs.get("use_expln"):
        log_std = torch.where(log_std > 0, torch.log(torch.log1p(log_std.clamp(min=0)) + 1), log_std)
    return log_std.expand(-1, actions).contiguous()  # without full_std there is one column


def _dqn(model: _Model) -> ImportedPolicy:
    filters, dense = model.features("q_net.features_extractor")
    layers = model.layers("q_net.q_net")
    activation = model.activation("ReLU", bool(filters), layers[:-1])
    shape = _shape(model, activation, [*dense, *layers[:-1]])
    return ImportedPolicy("dqn", {"model": shape}, filters | _named("q", [*dense, *layers]))


def _memory(
    model: _Model, actor: list[Layer], critic: list[Layer]
) -> tuple[dict[str, Tensor], list[Layer], list[Layer]]:
    """Return one recurrent core in place of the actor's and the critic's.

    The core has the units of both side by side, which do not see one another. The layers behind it see those of their
    own network.
    """
    if "critic.weight" in model.weights:
        raise model.refuse("actor and critic remember with an LSTM", "enable_critic_lstm=False")
    cores = [_lstm(model, "lstm_actor")]
    if "lstm_critic.weight_ih_l0" in model.weights:
        cores.append(_lstm(model, "lstm_critic"))
        size, other = (len(hidden[0]) for _, hidden, _ in cores)
        actor = [_padded(actor[0], after=other), *actor[1:]]
        critic = [_padded(critic[0], before=size), *critic[1:]]
    inputs, hidden, biases = zip(*cores, strict=True)  # each of four gates
    weights = [torch.cat(gates) for gates in zip(*inputs, strict=True)]
    recurrent = [torch.block_diag(*gates) for gates in zip(*hidden, strict=True)]
    bias = [torch.cat(gates) for gates in zip(*biases, strict=True)]
    core = {
        "input.weight": torch.cat(weights).T,
        "hidden.weight": torch.cat(recurrent).T,
        "input.bias": torch.cat(bias),
    }
    parameters = {f"memory.{name}": x.contiguous() for name, x in core.items()}
    return parameters | {"memory.input.bias": parameters["memory.input.bias"].unsqueeze(0)}, actor, critic


def _lstm(model: _Model, name: str) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return weights and biases of the gates, in our order."""
    inputs, hidden, *biases = (
        model.take(f"{name}.{part}_l0") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    parts = (tensor.chunk(len(GATES)) for tensor in (inputs, hidden, biases[0] + biases[1]))
    weights, recurrent, bias = ([chunks[gate] for gate in GATES] for chunks in parts)
    return weights, recurrent, bias


def _padded(layer: Layer, before: int = 0, after: int = 0, outputs: int = 0) -> Layer:
    """Return a layer with further inputs or outputs, whose weights are 0."""
    weight, bias = layer
    more = max(0, outputs - len(bias))
    return functional.pad(weight, (before, after, 0, more)), functional.pad(bias, (0, more))


def _soft(model: _Model) -> ImportedPolicy:
    """Return a policy of SAC, TQC or CrossQ."""
    if "actor.latent_pi.0.scale" in model.weights:
        return _crossq(model)
    if model.features("actor.features_extractor")[0]:
        raise model.refuse("SAC's and TQC's policies are of vectors, as its encoders of images differ", "a CnnPolicy")
    hidden, critics = model.layers("actor.latent_pi"), _critics(model)
    quantiles = len(critics[0][-1][1])
    hyperparameters: dict[str, Any] = {}
    if "actor.log_std" in model.weights:  # use_sde
        clip = float(model.kwargs.get("clip_mean", 2.0))
        mean = model.layer("actor.mu.0" if clip > 0 else "actor.mu")
        policy = _named("actor", [*hidden, _padded(mean, outputs=2)])
        policy["actor.log_std"] = _log_std(model, len(mean[1]), "actor.log_std")
        hyperparameters |= {"use_sde": True, "sde_clip_mean": clip if clip > 0 else None}
    else:
        policy = _named("actor", [*hidden, _mean_and_deviation(model)])
    for number, layers in enumerate(critics):
        policy |= _named(f"critic{number}", layers)
    activation = model.activation("ReLU", False, hidden)
    hyperparameters["model"] = _shape(model, activation, hidden, critics[0][:-1])
    if quantiles > 1:
        return ImportedPolicy("tqc", hyperparameters | {"critics": len(critics), "quantiles": quantiles}, policy)
    if len(critics) < 2:
        raise model.refuse("SAC has two critics or more", "n_critics=1")
    if len(critics) > 2:
        hyperparameters["critic"] = {"ensemble": len(critics), "subset": len(critics)}
    return ImportedPolicy("sac", hyperparameters, policy)


def _critics(model: _Model) -> list[list[Layer]]:
    """Return the layers of each critic."""
    critics: list[list[Layer]] = []
    while layers := model.layers(f"critic.qf{len(critics)}"):
        critics.append(layers)
    if not critics:
        raise model.refuse("critics are named qf0, qf1 and so on", "none")
    return critics


def _crossq(model: _Model) -> ImportedPolicy:
    if "actor.log_std" in model.weights:
        raise model.refuse("CrossQ's noise does not depend on states", "use_sde")
    hidden, parameters = _renormalized(model, "actor.latent_pi", "actor")
    policy = parameters | _named("actor", [*hidden, _mean_and_deviation(model)])
    critics = []
    for number in (0, 1):
        layers, parameters = _renormalized(model, f"critic.qf{number}", f"critic{number}")
        critics.append(layers)
        policy |= parameters | _named(f"critic{number}", layers)
    if not all(critics):
        raise model.refuse("CrossQ has two critics", "n_critics=1")
    shape = _shape(model, model.activation("ReLU", False, hidden), hidden)
    return ImportedPolicy("crossq", {"model": shape | {"critic_hidden": _widths(critics[0][:-1])}}, policy)


def _mean_and_deviation(model: _Model) -> Layer:
    """Return the last layer of a soft policy without use_sde."""
    (mean, mean_bias), (log_std, log_std_bias) = (model.layer(f"actor.{name}") for name in ("mu", "log_std"))
    return torch.cat([mean, log_std]), torch.cat([mean_bias, log_std_bias])


def _renormalized(model: _Model, prefix: str, network: str) -> tuple[list[Layer], dict[str, Tensor]]:
    """Return a network's layers, and the parameters that renormalize them."""
    names = {"scale": "scale", "bias": "shift", "ra_mean": "mean", "ra_var": "variance"}
    matches = (re.fullmatch(rf"{re.escape(prefix)}\.(\d+)\.ra_mean", name) for name in model.weights)
    parameters: dict[str, Tensor] = {}
    for number, index in enumerate(sorted(int(match[1]) for match in matches if match)):
        model.used_names.add(f"{prefix}.{index}.steps")
        for theirs, ours in names.items():
            parameters[f"{network}.{number}.{ours}"] = model.take(f"{prefix}.{index}.{theirs}").unsqueeze(0)
    return model.layers(prefix), parameters


def _deterministic(model: _Model) -> ImportedPolicy:
    """Return a policy of TD3 or DDPG."""
    if model.features("actor.features_extractor")[0]:
        raise model.refuse("TD3's and DDPG's policies are of vectors", "a CnnPolicy")
    actor, critics = model.layers("actor.mu"), _critics(model)
    if len(critics) > 2:
        raise model.refuse("TD3 has two critics, and DDPG one", f"n_critics={len(critics)}")
    policy = _named("actor", [*actor[:-1], _padded(actor[-1], outputs=2)])
    for number, layers in enumerate(critics):
        of_lone = [*layers[:-1], _padded(layers[-1], outputs=2)]  # see Exactness in networks/mlp.py
        policy |= _named(f"critic{number}", layers if len(critics) > 1 else of_lone)
    activation = model.activation("ReLU", False, actor[:-1])
    shape = _shape(model, activation, actor[:-1], critics[0][:-1])
    return ImportedPolicy("ddpg" if len(critics) == 1 else "td3", {"model": shape}, policy)


def _random_search(model: _Model) -> ImportedPolicy:
    """Return a policy of ARS; a linear one may lack biases."""
    for name in [name for name in model.weights if name.endswith(".weight")]:
        model.weights.setdefault(
            name.replace("weight", "bias"), model.weights[name].new_zeros(len(model.weights[name]))
        )
    *hidden, last = model.layers("action_net")
    linear = "ARSLinearPolicy" in str(model.data.get("policy_class"))
    box = "spaces.box" in str(model.data.get("action_space"))
    if box and model.kwargs.get("squash_output", not linear):
        raise model.refuse(
            "actions of ARS are clipped, not squashed by tanh", "squash_output=True, MlpPolicy's default"
        )
    shape: dict[str, Any] = {"layers": 0}
    if hidden:
        shape = _shape(model, model.activation("ReLU", False, hidden), hidden)
    return ImportedPolicy("ars", {"model": shape}, _named("actor", [*hidden, last]))


def _quantile_network(model: _Model) -> ImportedPolicy:
    """Return a policy of QR-DQN.

    Its outputs are ordered by quantiles, ours by actions.
    """
    filters, dense = model.features("quantile_net.features_extractor")
    *hidden, (weight, bias) = model.layers("quantile_net.quantile_net")
    quantiles = int(model.kwargs.get("n_quantiles", 200))
    last = (x.unflatten(0, (quantiles, -1)).transpose(0, 1).flatten(0, 1) for x in (weight, bias))
    shape = _shape(model, model.activation("ReLU", bool(filters), hidden), [*dense, *hidden])
    policy = filters | _named("q", [*dense, *hidden, (next(last), next(last))])
    return ImportedPolicy("qrdqn", {"model": shape, "quantiles": quantiles}, policy)


CONVERTERS = {  # by the beginning of a weight's name
    "action_net.weight": _actor_critic,
    "action_net.0.": _random_search,
    "q_net.q_net.0.weight": _dqn,
    "quantile_net.": _quantile_network,
    "actor.latent_pi.": _soft,
    "actor.mu.": _deterministic,
}


class _Inert:
    """The attributes of a pickled object, without its class."""

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self).update(state)

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class _InertUnpickler(pickle.Unpickler):
    """A reader of pickles that creates NumPy arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # as NumPy 1 wrote it
        if f"{module}.{name}" in ARRAYS:
            return super().find_class(module, name)
        return type(name, (_Inert,), {})


def _statistics(path: Path) -> tuple[dict[str, Tensor], bool]:
    """Return a VecNormalize's statistics of observations, by our names.

    The second result is whether it scaled rewards, too.
    """
    law = f"{path} must be the file that a VecNormalize of Stable-Baselines3 saved"
    try:
        with path.open("rb") as file:
            content = _InertUnpickler(file).load()
    except Exception as error:  # noqa: BLE001 - what is damaged may raise anything
        raise StateMismatch(f"{law}, but: {error}") from None
    if type(content).__name__ != "VecNormalize":
        raise StateMismatch(f"{law}, but got a pickled {type(content).__name__}")
    kept = vars(content)
    moments: Any = kept.get("obs_rms")
    if not kept.get("norm_obs") or type(moments).__name__ != "RunningMeanStd":
        of = "observations that are a Dict" if kept.get("norm_obs") else "rewards only, whose statistics start anew"
        raise StateMismatch(f"{path}: statistics are of observations that are one vector, but these are of {of}")
    for name, value in NORMALIZATION.items():
        if kept.get(name) != value:
            raise StateMismatch(f"{path}: observations are normalized with {name}={value:g}, but got {kept.get(name)}")
    try:
        parts = {"mean": moments.mean, "variance": moments.var, "count": [moments.count]}
        tensors = {name: torch.tensor(np.asarray(part, np.float64).reshape(-1)) for name, part in parts.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise StateMismatch(f"{law}, but: {error}") from None
    return tensors, bool(kept.get("norm_reward"))


def _named(network: str, layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Return layers by our names, in the form x W + b."""
    parameters = {}
    for index, (weight, bias) in enumerate(layers):
        parameters[f"{network}.{index}.weight"] = weight.T.contiguous()
        parameters[f"{network}.{index}.bias"] = bias.unsqueeze(0)
    return parameters


def _shape(
    model: _Model, activation: str, hidden: Sequence[Layer], critic: Sequence[Layer] | None = None
) -> dict[str, Any]:
    """Return the hyperparameters of networks with these hidden layers."""
    widths, critics = _widths(hidden), _widths(hidden if critic is None else critic)
    if not widths or not critics:
        raise model.refuse("networks have hidden layers", "net_arch without any")
    shape: dict[str, Any] = {"activation": activation}
    if len(set(widths)) == 1:
        shape |= {"width": widths[0], "layers": len(widths)}
    else:
        shape["hidden"] = widths
    return shape if critics == widths else shape | {"critic_hidden": critics}


def _widths(layers: Sequence[Layer]) -> list[int]:
    return [len(bias) for _, bias in layers]
