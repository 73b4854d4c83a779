"""Videos of a policy in its environment, made by Gymnasium's recorder."""

from __future__ import annotations

import reprlib
import shutil
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordVideo

from ..envs import EnvSpec
from ..envs.base.curriculum import Curriculum
from ..envs.base.space_rules import is_text
from ..envs.classic.envs import ClassicEnvs, classic_envs, is_classic
from ..envs.gym.envs import reset_seed
from ..envs.gym.make import make_env, make_for_episode, of_reset
from ..envs.gym.single_instance import take_turn
from ..envs.gym.surroundings import guards_of
from ..envs.pools.makers import is_pool
from ..envs.selftest.attempts import self_test
from ..errors import TaskError, class_and_text
from ..runtime.warning_filters import changed_filters

MOST_FRAMES = 3000  # frames of a video at most, since all are in memory before they are written
ENDING = ".mp4"
RENDER = "rgb_array"
# Warnings of MoviePy 1, which is the last one that works with any version of Pillow.
IGNORED = {".*": SyntaxWarning, "invalid escape sequence.*": DeprecationWarning}
Predict = Callable[[Any, Any], tuple[Any, Any]]  # (observation, recurrent state) -> (action, next state)


class NoVideo(TaskError, ValueError):
    """A video cannot be made."""


class Pictures(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that checks an environment's pictures."""

    def __init__(self, env: gym.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self.name = name

    def render(self) -> Any:
        try:
            picture = self.env.render()
        except gym.error.DependencyNotInstalled:  # `film` names what to install
            raise
        except Exception as error:
            raise NoVideo(f"{self.name} cannot be drawn: render() raised {class_and_text(error)}") from error
        if not (isinstance(picture, np.ndarray) and picture.ndim == 3):
            raise NoVideo(
                f"{self.name} cannot be drawn: with the render mode {RENDER}, render() returns an array of the shape "
                f"(height, width, 3), but it returned {reprlib.repr(picture)}; fix it"
            )
        return picture


class Begun(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that begins an episode of classic control as evaluation does."""

    def __init__(self, env: gym.Env[Any, Any], first: ClassicEnvs) -> None:
        super().__init__(env)
        self.first = first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        self.unwrapped.state = self.first.state[:, 0].astype(self.first.model.dtype)  # type: ignore[attr-defined]
        return self.first.obs[0, 0].copy(), info


def check_video(path: Path) -> None:
    """Raise NoVideo unless a video can be written to this file."""
    if path.suffix != ENDING:
        raise NoVideo(f"a video is written to a file that ends in {ENDING}, but got {path}")
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise NoVideo(f"a video is written to a file, but {path} cannot be: {error.strerror}") from None
    try:
        with changed_filters(IGNORED):
            import moviepy.video.io.ImageSequenceClip  # noqa: F401
    except ImportError as error:
        raise NoVideo(f"a video needs the library moviepy: pip install 'rekindle-rl[video]' ({error})") from None


def film(spec: EnvSpec, seed: int, predict: Predict, path: Path) -> float:
    """Write an episode as a video, and return its return.

    Args:
        spec: the environment.
        seed: seed of the episode, as in evaluation.
        predict: function that acts.
        path: file to write, with at most `MOST_FRAMES` frames; a warning says if the episode is longer.

    Raises:
        NoVideo: the file cannot be written, a library is missing, or the environment cannot be rendered.
    """
    check_video(path)
    guard = guards_of(spec.id).always
    with guard:
        env, first, options = _rendering(spec, seed)
    untold = dict.fromkeys((".*Overwriting existing videos.*", ".*Ignored saving a video.*"), UserWarning)
    with TemporaryDirectory() as folder, changed_filters(IGNORED | untold):
        recorder = RecordVideo(
            Pictures(env, spec.id), folder, episode_trigger=lambda episode: episode == 0, name_prefix="film"
        )
        try:
            with closing(recorder):
                with guard:
                    observation, _ = recorder.reset(seed=first, options=of_reset(options))
                state, total, over = None, 0.0, False
                while not over and len(recorder.recorded_frames) < MOST_FRAMES:
                    action, state = predict(_formed(observation, env.observation_space), state)
                    with guard:
                        observation, reward, terminated, truncated, _ = recorder.step(action)
                    total += float(reward)
                    over = terminated or truncated
        except gym.error.DependencyNotInstalled as error:
            raise NoVideo(f"{spec.id} cannot be drawn: {error}; or pip install 'rekindle-rl[video]'") from error
        [file] = Path(folder).iterdir()
        shutil.move(file, path)
    if not over:
        warnings.warn(
            f"{path} shows the first {MOST_FRAMES:,} frames of a longer episode, and its return is theirs; for "
            f"a whole one, give the environment a time limit: --env '{{\"max_episode_steps\": {MOST_FRAMES - 1}}}'",
            stacklevel=4,
        )
    return total


def _formed(observation: Any, space: gym.Space[Any]) -> Any:
    """Return an observation in the form of its space."""
    if isinstance(space, gym.spaces.Dict):
        return {name: _formed(observation[name], part) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_formed(observation[k], part) for k, part in enumerate(space.spaces))
    return observation if is_text(space) else np.asarray(observation).reshape(space.shape or ())


def _rendering(spec: EnvSpec, seed: int) -> tuple[gym.Env[Any, Any], int, dict[str, Any]]:
    """Return the environment of an evaluation's first episode, with rendering.

    The others are the arguments of its reset.
    """
    law = f"a video needs an environment that draws itself as an {RENDER}, but {spec.id}"
    if is_pool(spec):
        raise NoVideo(f"{law} steps many at once and draws none; name one that does with --env")
    take_turn()
    with closing(make_env(spec)) as plain:
        modes = plain.metadata.get("render_modes") or []
    if RENDER not in modes:
        has = f"has the render modes {', '.join(modes)}" if modes else "has no render modes"
        raise NoVideo(f"{law} {has}; write a render() and name {RENDER} in metadata['render_modes']")
    restore = self_test(spec)
    # The random streams of the first episode are those of `GymEnvs`.
    episode: tuple[int | str, ...] = ("epoch", 0, 0, 0) if restore.mode == "restart" else (0, 0)
    options = Curriculum(spec.parameters, (seed,), "evaluation", tuple(spec.info)).options(0, *episode)
    drawn = replace(spec, kwargs={**spec.kwargs, "render_mode": RENDER})
    env = make_for_episode(drawn, restore.generators, options, plain)
    if is_classic(spec):
        env = Begun(env, classic_envs(spec, (seed,), 1, "evaluation"))
    return env, reset_seed("evaluation", seed, *episode), options
