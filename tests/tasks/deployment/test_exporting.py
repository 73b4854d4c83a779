"""Policies as programs: they run without Rekindle, and act like the task."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from rekindle import DQN, PPO, SAC, SVPG, Behaviours, Task
from rekindle.tasks import load
from rekindle.tasks.deployment.exporting import ExportError, _action, _image, _named, _vector
from rekindle.tasks.envs import spaces_of
from rekindle.tasks.envs.base.observations import Observations
from test_predicting import MEMORY, OFF, ON, env_of

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.load. is deprecated:DeprecationWarning")
NORMALIZED = {**ON, "normalize_obs": True, "use_sde": True}
BOARDS = {
    "id": "faulty_envs:faults/Soak-v0",
    "kwargs": {"see": ["board", "flags", "box"], "do": "choice", "length": 9, "faults": {}},
}
CASES = [
    (PPO, "own_envs:DictWalk-v0", ON),
    (PPO, "own_envs:RowsWalk-v0", ON),
    (PPO, "own_envs:GridWalk-v0", ON),
    (PPO, "Pendulum-v1", NORMALIZED),
    (PPO, "CartPole-v1", {**ON, "model.memory": "gru"}),
    (DQN, "own_envs:PictureWalk-v0", OFF),
    (SAC, "own_envs:HybridWalk-v0", OFF),
    (SAC, "Pendulum-v1", {**OFF, **MEMORY}),
    (PPO, "own_envs:CameraWalk-v0", {**ON, "model.encoder": "small"}),
    (PPO, BOARDS, {**ON, "model.encoder": "small"}),
]
BREADTH = [
    (SAC, "own_envs:CameraWalk-v0", {**OFF, **MEMORY, "model.encoder": "small"}),
    (DQN, "own_envs:CameraWalk-v0", {**OFF, "model.encoder": "small"}),
    (PPO, "own_envs:BitsWalk-v0", {**ON, "model.shared_critic": True}),
    (SVPG, "CartPole-v1", {**ON, "num_particles": 2}),
    (SAC, "own_envs:RowsWalk-v0", OFF),
    (PPO, "own_envs:HybridWalk-v0", ON),
    (SAC, "own_envs:ImageWalk-v0", {**OFF, "model.encoder": "impala"}),
]


def seen(task: Task, rows: int) -> tuple[Any, list[np.ndarray]]:
    """A batch of observations as `predict` takes it, and its parts as a program does."""
    space = env_of(task).observation_space
    space.seed(5)
    drawn = [space.sample() for _ in range(rows)]

    def stacked(parts: list[Any]) -> Any:
        if isinstance(parts[0], dict):
            return {name: stacked([part[name] for part in parts]) for name in parts[0]}
        if isinstance(parts[0], tuple):
            return tuple(map(stacked, zip(*parts, strict=True)))
        return np.stack(parts)

    batch = stacked(drawn)
    return batch, parts_of(batch)


def parts_of(action: Any) -> list[np.ndarray]:
    if isinstance(action, dict | tuple):
        values = action.values() if isinstance(action, dict) else action
        return [part for value in values for part in parts_of(value)]
    return [np.asarray(action)]


@pytest.mark.parametrize(
    ("task_class", "env", "values"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in BREADTH)]
)
def test_a_program_acts_as_the_task_does(task_class: Any, env: Any, values: Any, tmp_path: Path) -> None:
    task = task_class(env).init(**values)
    if values is NORMALIZED:
        task.fit(1)
    script = torch.jit.load(str(task.export_policy(tmp_path / "policy.pt")))  # type: ignore[no-untyped-call]
    session = onnxruntime.InferenceSession(str(task.export_policy(tmp_path / "x", "onnx")))
    names = [get_input.name for get_input in session.get_inputs()]
    assert names[: -2 if "state" in names else None] == [
        name for name, _ in _named("observation", spaces_of(task.env).observation)
    ]
    for rows in (1, 6):
        batch, inputs = seen(task, rows)
        action, state = task.predict(batch)
        begins = np.arange(rows) % 2 == 0
        if state is not None:
            inputs = [*inputs, state, begins]
            action, state = task.predict(batch, state, begins)
        expected = parts_of(action) + ([] if state is None else [state])
        of_onnx = session.run(None, dict(zip(names, inputs, strict=True)))
        of_script = [x.numpy() for x in script(*map(torch.from_numpy, inputs))]
        for outputs, *others in zip(expected, of_onnx, of_script, strict=True):
            for other in others:
                assert (outputs.shape, outputs.dtype) == (other.shape, other.dtype)
                np.testing.assert_allclose(outputs, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_program_needs_no_rekindle_and_says_what_it_is(tmp_path: Path) -> None:
    task = PPO("CartPole-v1").init(**ON)
    file, observations = task.export_policy(tmp_path / "policy.pt"), np.eye(4, dtype=np.float32)
    code = """
import json, sys, torch
notes = {"rekindle.json": ""}
policy = torch.jit.load(sys.argv[1], _extra_files=notes)
(action,) = policy(torch.eye(4))
assert "rekindle" not in sys.modules
print(json.dumps([action.tolist(), json.loads(notes["rekindle.json"])]))
"""
    command = [sys.executable, "-W", "ignore", "-c", code, str(file)]
    result = subprocess.run(command, cwd="/", check=True, capture_output=True, text=True).stdout
    actions, notes = json.loads(result)
    assert actions == task.predict(observations)[0].tolist()
    assert (notes["uid"], notes["inputs"], notes["outputs"]) == (task.uid, ["observation"], ["action"])


def test_the_environments_of_a_program_are_closed(tmp_path: Path) -> None:
    task = PPO("own_envs:RowsWalk-v0").init(**ON)
    made: list[Any] = []

    class Watched(PPO.learner):  # type: ignore[name-defined,misc]
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **options)
            made.append(self)

    task.fit(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PPO, "learner", Watched)
        task.export_policy(tmp_path / "policy.pt")
    assert [learner.envs._backend for learner in made] == [None]


def test_each_particle_can_act(tmp_path: Path) -> None:
    task = SVPG("Pendulum-v1").init(**ON, num_particles=2)
    batch, inputs = seen(task, 4)
    for particle in (0, 1):
        session = onnxruntime.InferenceSession(str(task.export_policy(tmp_path / "p.onnx", particle=particle)))
        expected = task.predict(batch, particle=particle)[0]
        np.testing.assert_allclose(session.run(None, {"observation": inputs[0]})[0], expected, atol=1e-5)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = PPO("CartPole-v1").init(**ON)
    with pytest.raises(ExportError, match=r"safetensors \(.safetensors\), torchscript \(.pt\).*but got 'policy.zip'"):
        task.export_policy(tmp_path / "policy.zip")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ExportError, match=r"pip install 'rekindle-rl\[onnx\]'"):
        task.export_policy(tmp_path / "policy.onnx")
    with pytest.raises(ExportError, match=r"Surrogate has no environment to act in; export it as \.safetensors"):
        load("surrogate")(None).init().export_policy(tmp_path / "policy.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(4, start=2),
        spaces.MultiDiscrete([3, 2], start=[1, -1]),
        spaces.MultiBinary((2, 2)),
        spaces.Box(-1, 1, (2, 3)),
    ],
)
def test_each_part_of_observations_is_the_numbers_that_gymnasium_makes_of_it(space: spaces.Space) -> None:
    space.seed(3)
    drawn = [space.sample() for _ in range(6)]
    expected = np.stack([spaces.flatten(space, observation) for observation in drawn])
    assert np.array_equal(_vector(space, torch.from_numpy(np.stack(drawn))).numpy(), expected)


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 3), (4, 5, 6, 3)])  # the last is frames of images
@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 255, np.uint8), (3, 10, np.uint8), (0, 1, np.bool_)])
def test_images_are_those_that_the_encoder_writes(shape: tuple[int, ...], low: int, high: int, dtype: Any) -> None:
    space = spaces.Box(low, high, shape, dtype, seed=3)
    drawn, encoder = [space.sample() for _ in range(2)], Observations(space, "here")
    expected = np.zeros((2, *encoder.shape), np.uint8)
    for obs, out in zip(drawn, expected, strict=True):
        encoder.write(obs, out)
    np.testing.assert_array_equal(_image(space, torch.from_numpy(np.stack(drawn)), encoder.shape).numpy(), expected)


def test_each_part_of_actions_has_the_form_that_environments_take() -> None:
    for space, numbers, action in (
        (spaces.MultiBinary((2, 2)), [[1.0, 0.0, 0.0, 1.0]], [[[1, 0], [0, 1]]]),
        (spaces.MultiDiscrete([3, 2], start=[1, -1]), [[2.0, 0.0]], [[3, -1]]),
        (spaces.MultiDiscrete([[3, 2], [4, 4]], start=[[1, -1], [0, 0]]), [[2.0, 0, 1, 3]], [[[3, -1], [1, 3]]]),
        (spaces.Box(-3, 5, (2,), np.int16), [[1.6, 9.0]], [[2, 5]]),
    ):
        result = _action(space, torch.tensor(numbers)).numpy()
        assert result.tolist() == action
        assert all(space.contains(decoded) for decoded in result)


def test_a_behaviours_policy_is_a_program_of_its_own(tmp_path: Path) -> None:
    seen = {"hunter_0": np.array([3.0], np.float32), "hunter_1": np.array([-3.0], np.float32)}
    seen["deer_0"] = np.array([1.0, 2.0], np.float32)
    values = {"agent_ids": True, "critic": {"central": "joint"}, "normalize_obs": True}
    values |= {"num_steps": 16, "num_minibatches": 2}
    task = Behaviours("pettingzoo/hunt_env:Hunt", seed=4)
    task.init(epoch_steps=64, num_envs=2, hunter=values, deer={"algorithm": "dqn"})
    task.fit(1)
    programs = {}
    for name in ("hunter", "deer"):
        programs[name] = torch.jit.load(task.export_policy(tmp_path / f"{name}.pt", behaviour=name))
    of_hunters = torch.from_numpy(np.stack([seen["hunter_0"], seen["hunter_1"]]))
    actions = task.act(seen)
    # which of the hunters one is, is part of what their policy sees
    assert programs["hunter"](of_hunters, torch.arange(2))[0].tolist() == [actions["hunter_0"], actions["hunter_1"]]
    assert programs["deer"](torch.from_numpy(seen["deer_0"])[None])[0].tolist() == [actions["deer_0"]]
    with pytest.raises(ValueError, match=r"one of hunter, deer must be named \(--behaviour\), but got none"):
        task.export_policy(tmp_path / "x.pt")
    with pytest.raises(ExportError, match=r"weights .* are of all behaviours, but got 'deer'; .*a program"):
        task.export_policy(tmp_path / "x.safetensors", behaviour="deer")
    with pytest.raises(ValueError, match="PPO has one policy, but got the behaviour 'deer'; leave it out"):
        PPO("CartPole-v1").init().export_policy(tmp_path / "x.pt", behaviour="deer")
