"""Policies as programs that run without Rekindle: TorchScript and ONNX.

A program maps a batch of observations to greedy actions. Both have the form of the Gymnasium environment, with one more
leading axis.

- Inputs: ``observation``; for a Dict or Tuple one input per part, such as ``observation.position``. A policy with a
  memory also takes ``state`` (N, S), zeros at first, and ``episode_start`` (N,), which resets a state to 0. One with
  `agent_ids` takes ``agent`` (N,) before these, the index among the behaviour's agents.
- Outputs: ``action``, in parts like observations, and ``next_state``.

TorchScript takes and returns them in this order. The program contains encoding, normalization and bounds. It is traced
from the policy's own code, and tested before it is written.
"""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..base_learner import BaseLearner
from ..checkpoint.policy_files import write_whole
from ..envs import Joined, spaces_of
from ..envs.agents.views import BehaviourView
from ..envs.base.images import PIXEL, MixedShape, is_image, is_scaled
from ..envs.base.joined import leaves
from ..envs.base.observations import Observations
from ..envs.base.space_rules import is_text
from ..errors import TaskError
from ..learner import Learner
from ..runtime.threads import one_thread

Leaf = tuple[str, spaces.Space[Any]]
RECORDED, TRIED = 3, (1, 5)  # rows of a batch while the program is traced, and when it is tested
OPSET = 18
FORMATS = {".safetensors": "safetensors", ".pt": "torchscript", ".onnx": "onnx"}


class ExportError(TaskError, ValueError):
    """The policy cannot be written as a program."""


class PolicyProgram(torch.nn.Module):
    """Greedy actions of one member for a batch of observations.

    Attributes:
        inputs, outputs: names, in order.
    """

    def __init__(self, learner: Learner, member: int):
        """Describe the parts of observations and actions."""
        super().__init__()
        spaces = spaces_of(learner.env)
        self.member, self.members = member, learner.members
        self.act, self.action_space = learner.greedy, spaces.action
        self.encoded = Observations(spaces.observation, learner.env.id)
        self.observation: list[Leaf] = list(_named("observation", spaces.observation))
        for name, leaf in self.observation:
            if is_text(leaf):
                raise ExportError(
                    f"a program takes numbers, but {name} of {learner.env.id} is a text; add a wrapper that leaves it "
                    "out, or encodes it"
                )
        whole = spaces.action.space if isinstance(spaces.action, Joined) else spaces.action
        self.action: list[Leaf] = list(_named("action", whole))
        memory = getattr(learner.acting_memory(1), "tensors", {}).get("state")
        self.state_size = 0 if memory is None else memory.shape[-1]
        view, self.agents, self.unseen = learner.envs, 0, 0
        if isinstance(view, BehaviourView):
            self.agents = view.agents * view.extras.ids
            self.unseen = math.prod(view.obs_shape) - math.prod(self.encoded.shape) - self.agents  # by the policy
        self.inputs = [name for name, _ in self.observation] + ["agent"][: self.agents]
        self.inputs += ["state", "episode_start"][: 2 * bool(self.state_size)]
        self.outputs = [name for name, _ in self.action] + ["next_state"][: bool(self.state_size)]

    def examples(self, rows: int) -> list[Tensor]:
        """Return inputs of the right types, with random observations."""
        generator = np.random.default_rng(rows)
        batch = []
        for _, leaf in self.observation:
            leaf.seed(int(generator.integers(2**31)))
            batch.append(torch.from_numpy(np.stack([np.asarray(leaf.sample()) for _ in range(rows)])))
        if self.agents:
            batch.append(torch.arange(rows) % self.agents)
        if self.state_size:
            batch.append(torch.from_numpy(generator.normal(size=(rows, self.state_size)).astype(np.float32)))
            batch.append(torch.arange(rows) % 2 == 0)
        return batch

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        observation, rest = inputs[: len(self.observation)], [*inputs[len(self.observation) :]]
        obs, state = self._encode(observation), None
        if self.agents:
            one, *rest = rest
            obs = torch.cat([obs, (one.unsqueeze(-1) == torch.arange(self.agents)).float()], -1)
        if self.unseen:
            obs = torch.cat([obs, torch.zeros(1, self.unseen).expand(obs.shape[0], -1)], -1)
        obs = obs.unsqueeze(0)
        if self.state_size:
            state = (rest[0] * (~rest[1]).to(torch.float32).unsqueeze(-1)).unsqueeze(0)
        if self.members > 1:  # other particles of SVPG
            obs = obs.repeat(self.members, *[1] * (obs.ndim - 1))
            state = None if state is None else state.repeat(self.members, 1, 1)
        actions, after = self.act(obs, state)
        action = tuple(self._decode(actions[self.member]))
        return action if after is None else (*action, after[self.member])

    def _encode(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Return the batch in the form that the policy's encoder takes."""
        if self.encoded.kind == "image":
            return _image(self.observation[0][1], parts[0], self.encoded.shape)
        numbers, images = [], []
        forms = iter(self.encoded.shape.images if isinstance(self.encoded.shape, MixedShape) else [])
        for (_, leaf), x in zip(self.observation, parts, strict=True):
            if is_image(leaf):
                images.append(_image(leaf, x, next(forms)[0]).flatten(1).float())
            else:
                numbers.append(_vector(leaf, x))
        return torch.cat(numbers + images, -1).unsqueeze(1) if images else torch.cat(numbers, -1)

    def _decode(self, actions: Tensor) -> Iterator[Tensor]:
        """Yield the parts of actions, as `Actions` decodes them."""
        if not isinstance(self.action_space, Joined):
            yield _action(self.action_space, actions)
            return
        for (_, leaf), (_, _, columns) in zip(self.action, self.action_space.parts, strict=True):
            part = actions[:, columns]
            yield _action(leaf, part[:, 0].round() if isinstance(leaf, spaces.Discrete) else part)


def _named(name: str, space: spaces.Space[Any]) -> Iterator[Leaf]:
    for path, leaf in leaves(space):
        yield ".".join([name, *map(str, path)]), leaf


def _image(space: spaces.Space[Any], x: Tensor, form: tuple[int, ...]) -> Tensor:
    """Return images (N, H, W, C) as the encoder writes them."""
    if is_scaled(space):
        low, high = (torch.from_numpy(bound.astype(np.float32)) for bound in (space.low, space.high))  # type: ignore[attr-defined]
        x = ((x.float() - low) * PIXEL / (high - low).clamp(min=1)).round().to(torch.uint8)
    if x.ndim == 5:  # frames x height x width x channels
        return x.permute(0, 2, 3, 1, 4).reshape(-1, *form)
    if x.ndim == 3:
        return x.unsqueeze(-1)
    return x.permute(0, 2, 3, 1) if x.shape[1] < x.shape[3] else x


def _vector(space: spaces.Space[Any], x: Tensor) -> Tensor:
    """Return the numbers (N, D) of one part of observations."""
    if isinstance(space, spaces.Discrete):
        return (x.unsqueeze(-1) == torch.arange(int(space.n)) + int(space.start)).float()
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
        columns = x.reshape(-1, len(sizes)).unbind(-1)
        rows = zip(columns, sizes, starts, strict=True)
        return torch.cat([(column.unsqueeze(-1) == torch.arange(n) + start).float() for column, n, start in rows], -1)
    return x.reshape(-1, spaces.flatdim(space)).float()


def _action(space: spaces.Space[Any], x: Tensor) -> Tensor:
    """Return one part of actions (N, ...) as environments take it."""
    dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
    if isinstance(space, spaces.Box):
        low, high = (torch.from_numpy(np.array(bound, np.float32)) for bound in (space.low, space.high))
        x = torch.minimum(torch.maximum(x.reshape(-1, *space.shape), low), high)
        return (x if dtype.is_floating_point else x.round()).to(dtype)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        start = torch.from_numpy(np.array(space.start, np.int64))
        return (x.to(torch.int64).reshape(-1, *(space.shape or ())) + start).to(dtype)
    return x.reshape(-1, *(space.shape or ())).to(dtype)


def format_of(path: str | os.PathLike[str], format: str | None, subject: str) -> str:
    """Return the given format, or the one for the file's suffix.

    Raises:
        ExportError: there is no such format.
    """
    chosen = format or FORMATS.get(Path(path).suffix, "")
    if chosen not in FORMATS.values():
        forms = ", ".join(f"{form} ({ending})" for ending, form in FORMATS.items())
        raise ExportError(f"{subject}: a policy is written as {forms}, but got {format or Path(path).name!r}")
    return chosen


@one_thread()
@torch.no_grad()
def write_program(
    path: str | os.PathLike[str], form: str, learner: BaseLearner, particle: int, about: Mapping[str, Any]
) -> Path:
    """Write a policy as a program.

    Args:
        path: file to write, atomically.
        form: "torchscript" or "onnx".
        learner: learner of a single member, on the CPU.
        particle: index of the particle that acts; 0 for a member without particles.
        about: metadata to write into the file.

    Raises:
        ExportError: the learner does not act, a package is missing, or the program's actions differ from the policy's.
    """
    if not isinstance(learner, Learner):
        reason = "is a model of another library" if learner.needs_env else "has no environment to act in"
        raise ExportError(f"{learner.algorithm()} {reason}; export it as .safetensors")
    path, subject = Path(path), f"{learner.algorithm()} on {learner.env.id}"
    program = PolicyProgram(learner.particles or learner, particle).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that tracing is old, and that it makes shapes constant
        recorded = torch.jit.trace(program, tuple(program.examples(RECORDED)), check_trace=False)
    for rows in TRIED:
        inputs = program.examples(rows)
        for name, output, other in zip(program.outputs, program(*inputs), recorded(*inputs), strict=True):
            if output.shape != other.shape or not torch.allclose(output.float(), other.float(), rtol=1e-4, atol=1e-4):
                raise ExportError(f"{subject}: the recorded program gives another {name} for {rows} rows; report this")
    notes = {"contents": "greedy policy", "inputs": program.inputs, "outputs": program.outputs, **about}
    if form == "torchscript":
        data = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(recorded, data, _extra_files={"rekindle.json": json.dumps(notes).encode()})
        return write_whole(path, data.getvalue())
    return write_whole(path, _onnx(recorded, program, notes, subject))


def _onnx(recorded: Any, program: PolicyProgram, notes: Mapping[str, Any], subject: str) -> bytes:
    try:
        import onnx
    except ImportError:
        raise ExportError(
            f"{subject}: .onnx needs a package, which is not here: pip install 'rekindle-rl[onnx]'"
        ) from None
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            recorded,
            tuple(program.examples(RECORDED)),
            data,  # type: ignore[arg-type]  # a file is as good as a path
            dynamo=False,  # the other exporter takes ten times as long
            opset_version=OPSET,
            input_names=program.inputs,
            output_names=program.outputs,
            dynamic_axes={name: {0: "batch"} for name in {*program.inputs, *program.outputs}},
        )
    model = onnx.load_from_string(data.getvalue())
    for name, value in notes.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value if isinstance(value, str) else json.dumps(value)
    written: bytes = model.SerializeToString()
    return written
