"""Policies of Stable-Baselines3: the networks in a file that its `save` wrote.

PPO, A2C, DQN and SAC are read with an MlpPolicy, and all but SAC with a CnnPolicy for images. No code from the file is
run: weights are read as tensors only, and the pickled data next to them is not read at all. Greedy actions are those of
the model. If it saw normalized observations, the statistics come from the file that its VecNormalize wrote.
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

from ..errors import StateMismatch

Layer = tuple[Tensor, Tensor]
ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "SiLU": "silu", "ELU": "elu"}
NORMALIZATION = {"clip_obs": 10.0, "epsilon": 1e-8}  # as of `experience.normalizers`
ARRAYS = {"numpy.ndarray", "numpy.dtype", *(f"numpy._core.multiarray.{name}" for name in ("scalar", "_reconstruct"))}
NETWORKS = "networks are those of an MlpPolicy or CnnPolicy"
COPIES = ("q_net_target.", "critic_target.", "pi_features_extractor.", "vf_features_extractor.")


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

    def __init__(self, path: Path, data: Mapping[str, Any], weights: Mapping[str, Tensor]):
        self.path, self.data, self.weights = path, data, weights
        self.taken: set[str] = set()  # names of weights
        kwargs = data.get("policy_kwargs")
        self.kwargs: Mapping[str, Any] = kwargs if isinstance(kwargs, Mapping) else {}

    def refuse(self, law: str, got: str) -> StateMismatch:
        return StateMismatch(f"{self.path}: {law}, but got {got}")

    def layers(self, prefix: str) -> list[Layer]:
        """Return the layers of a torch.nn.Sequential, in order."""
        found = (re.fullmatch(rf"{re.escape(prefix)}\.(\d+)\.weight", name) for name in self.weights)
        return [self.layer(f"{prefix}.{index}") for index in sorted(int(match[1]) for match in found if match)]

    def layer(self, name: str) -> Layer:
        weight, bias = self.take(f"{name}.weight"), self.take(f"{name}.bias")
        if weight.ndim not in (2, 4) or not weight.is_floating_point() or bias.shape != weight.shape[:1]:
            raise self.refuse(NETWORKS, f"{name}, which is not one of their layers")
        return weight, bias

    def take(self, name: str) -> Tensor:
        self.taken.add(name)
        return self.weights[name]

    def check_whole(self) -> None:
        """Refuse networks of which a part was left out.

        Without it they would act differently.
        """
        left = [name for name in self.weights if name not in self.taken and not name.startswith(COPIES)]
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
        kind = default if named is None else str(named).rpartition(".")[2].rstrip("'>")
        if images and not hidden:
            return "relu"  # the encoder's dense layer is the only hidden layer, and it has ReLU
        if kind not in ACTIVATIONS or (images and kind != "ReLU"):
            law = "activations are " + ("ReLU, as behind the images" if images else ", ".join(ACTIVATIONS))
            raise self.refuse(law, kind)
        return ACTIVATIONS[kind]


def import_policy(path: str | os.PathLike[str], vec_normalize: str | os.PathLike[str] | None = None) -> ImportedPolicy:
    """Return the networks of a model that Stable-Baselines3 saved.

    Args:
        path: .zip file that `model.save` wrote.
        vec_normalize: .pkl file that its VecNormalize's `save` wrote, if observations were normalized.

    Raises:
        StateMismatch: it is not such a file, or its networks or statistics have no counterpart.
    """
    found = _networks(Path(path))
    if vec_normalize is None:
        return found
    statistics, scales_rewards = _statistics(Path(vec_normalize))
    policy = found.policy | {f"obs_normalizer.{name}": x for name, x in statistics.items()}
    hyperparameters = found.hyperparameters | {"normalize_obs": True}
    if "normalize_reward" in hyperparameters:
        hyperparameters["normalize_reward"] = scales_rewards
    return replace(found, policy=policy, hyperparameters=hyperparameters)


def _networks(path: Path) -> ImportedPolicy:
    try:
        with zipfile.ZipFile(path) as archive:
            data, weights = json.loads(archive.read("data")), io.BytesIO(archive.read("policy.pth"))
        tensors = torch.load(weights, map_location="cpu", weights_only=True)
        model = _Model(path, data, {str(name): tensor.detach().clone() for name, tensor in tensors.items()})
    except Exception as error:  # noqa: BLE001 - what is damaged may raise anything
        reason = getattr(error, "strerror", None) or str(error).partition(".")[0]
        raise StateMismatch(f"{path} must be a model that Stable-Baselines3 saved, but: {reason}") from None
    for mark, convert in (("action_net.weight", _actor_critic), ("q_net.q_net.0.weight", _dqn), ("actor.mu.", _sac)):
        if any(name.startswith(mark) for name in model.weights):
            try:
                found = convert(model)
            except KeyError as error:
                raise model.refuse(NETWORKS, f"none named {error}") from None
            model.check_whole()
            return found
    some = ", ".join(list(model.weights)[:3])
    raise model.refuse("a policy is taken from a PPO, A2C, DQN or SAC", f"networks named {some}, ...")


def _actor_critic(model: _Model) -> ImportedPolicy:
    if "cg_max_steps" in model.data:  # of conjugate gradients; the networks alone look like those of A2C
        raise model.refuse("a policy is taken from a PPO, A2C, DQN or SAC", "one of TRPO")
    pairs = [(x, model.weights.get(name.replace("pi_features", "vf_features"))) for name, x in model.weights.items()]
    if any(other is not None and not torch.equal(x, other) for x, other in pairs):
        raise model.refuse("actor and critic share the encoder of images", "share_features_extractor=False")
    filters, dense = model.features("features_extractor")
    pi, vf = (model.layers(f"mlp_extractor.{name}_net") for name in ("policy", "value"))
    activation = model.activation("Tanh", bool(filters), [*pi, *vf])
    policy = filters | _named("actor", [*dense, *pi, model.layer("action_net")])
    policy |= _named("critic", [*dense, *vf, model.layer("value_net")])
    if "log_std" in model.weights:
        policy["actor.log_std"] = _log_std(model, len(model.layer("action_net")[1]))
    hyperparameters: dict[str, Any] = {"model": _shape(model, activation, [*dense, *pi], [*dense, *vf])}
    hyperparameters["normalize_reward"] = False  # the critic's values are in units of the environment's rewards
    if model.data.get("use_sde"):
        hyperparameters["use_sde"] = True
    return ImportedPolicy("ppo" if "clip_range" in model.data else "a2c", hyperparameters, policy)


def _log_std(model: _Model, actions: int) -> Tensor:
    """Return log deviations: a row, or one for each activation (use_sde)."""
    if model.kwargs.get("squash_output"):
        raise model.refuse("actions of PPO and A2C are clipped", "squash_output=True")
    log_std = model.take("log_std")
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


def _sac(model: _Model) -> ImportedPolicy:
    if model.features("actor.features_extractor")[0]:
        raise model.refuse("SAC's policies are of vectors, as its encoders of images differ", "a CnnPolicy")
    if "actor.log_std.weight" not in model.weights:
        raise model.refuse("a policy with actor.mu is SAC's, without use_sde", "one without actor.log_std")
    hidden, (mean, log_std) = model.layers("actor.latent_pi"), map(model.layer, ("actor.mu", "actor.log_std"))
    last = (torch.cat([mean[0], log_std[0]]), torch.cat([mean[1], log_std[1]]))
    policy, twins = _named("actor", [*hidden, last]), [model.layers(f"critic.qf{twin}") for twin in (0, 1)]
    if not all(twins):
        raise model.refuse("SAC has two critics, qf0 and qf1", "others")
    for twin, layers in enumerate(twins):
        policy |= _named(f"critic{twin}", layers)
    activation = model.activation("ReLU", False, hidden)
    return ImportedPolicy("sac", {"model": _shape(model, activation, hidden, twins[0][:-1])}, policy)


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
            found = _InertUnpickler(file).load()
    except Exception as error:  # noqa: BLE001 - what is damaged may raise anything
        raise StateMismatch(f"{law}, but: {error}") from None
    if type(found).__name__ != "VecNormalize":
        raise StateMismatch(f"{law}, but got a pickled {type(found).__name__}")
    kept = vars(found)
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
    widths, critics = ([len(bias) for _, bias in layers] for layers in (hidden, hidden if critic is None else critic))
    if not widths or not critics:
        raise model.refuse("networks have hidden layers", "net_arch without any")
    shape: dict[str, Any] = {"activation": activation}
    if len(set(widths)) == 1:
        shape |= {"width": widths[0], "layers": len(widths)}
    else:
        shape["hidden"] = widths
    return shape if critics == widths else shape | {"critic_hidden": critics}
