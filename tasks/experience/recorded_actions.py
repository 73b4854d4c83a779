"""Recorded actions, and a policy that plays them back.

The policy ignores observations until its recording ends.

    Recording.of(actions).save("walk.npz")                      # (T, ...) of one episode, or several of them
    task.record(episodes=1).save("walk.npz")                    # or what a task did in evaluation, or in training
    policy = Replayed.load("walk.npz", end="model", model=task.act)
    policy.reset()
    action = policy(observation)

Notation: T steps, N environments; every environment has its own recording and cursor.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from ..checkpoint.array_files import open_npz
from ..checkpoint.policy_files import write_whole
from ..envs import EnvSpec, Joined, spaces_of
from ..envs.base.actions import Actions
from ..errors import TaskError

Array = NDArray[Any]
ENDS = ("raise", "loop", "model")


class BadRecording(TaskError, ValueError):
    """Recorded actions cannot be played in this form."""


class RecordingEnded(TaskError):
    """No recorded action is left to play."""


@dataclass(frozen=True)
class Recording:
    """The recorded actions of N episodes.

    Attributes:
        actions: (N, T, ...) as the environment takes them; those beyond an episode's length are never played.
        lengths: steps of each episode, (N,), at least one.
        joined: splits rows into the actions of a Dict or Tuple; None for other spaces.
        env: text of the environment's spec, from which a file's reader learns how rows are split; empty without.
    """

    actions: Array
    lengths: NDArray[np.int64]
    joined: Joined | None = None
    env: str = ""

    def __post_init__(self) -> None:
        actions, lengths = self.actions, self.lengths
        if actions.ndim < 2 or actions.dtype.kind not in "iufb":
            raise BadRecording(
                f"recorded actions are numbers of shape (N, T, ...), but got {actions.dtype} of shape {actions.shape}"
            )
        fits = lengths.shape == actions.shape[:1] and ((lengths >= 1) & (lengths <= actions.shape[1])).all()
        if not fits or not len(lengths):
            raise BadRecording(
                f"{len(actions)} recorded episodes need as many lengths from 1 to {actions.shape[1]}, but got "
                f"{lengths.tolist()}"
            )

    @classmethod
    def of(cls, *episodes: Sequence[Any] | Array) -> Self:
        """Create a recording from one or more episodes' actions (T, ...).

        Episodes may differ in length.

        Raises:
            BadRecording: an episode is empty, or shapes differ.
        """
        arrays = [np.asarray(episode) for episode in episodes]
        forms = {(array.shape[1:], array.dtype.kind) for array in arrays}
        if len(forms) != 1 or not all(array.ndim and len(array) for array in arrays):
            raise BadRecording(
                "each recorded episode must have at least one action, all of the same shape, but got the shapes "
                f"{[array.shape for array in arrays]}"
            )
        lengths = np.array([len(array) for array in arrays])
        actions = np.zeros((len(arrays), lengths.max(), *arrays[0].shape[1:]), arrays[0].dtype)
        for row, array in zip(actions, arrays, strict=True):
            row[: len(array)] = array
        return cls(actions, lengths)

    @classmethod
    def of_steps(cls, actions: Array, begins: Array, env: str | EnvSpec | Mapping[str, Any] | None = None) -> Self:
        """Create a recording from episodes that follow one another.

        Args:
            actions: (M, ...).
            begins: (M,), 1 at the first step of each episode, else 0.
            env: environment whose learner produced the actions; None if they already have the environment's form.
        """
        joined, text = None, ""
        if env is not None:
            spec = EnvSpec.of(env)
            codec = Actions(spaces_of(spec).action, spec.id)
            actions = codec.decode(actions)
            if isinstance(codec.space, Joined):
                joined, text = codec.space, spec.canonical
        episodes = cls.of(*np.split(actions, np.flatnonzero(begins)[1:]))
        return replace(episodes, joined=joined, env=text)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the recording as .npz, atomically: demonstrations without observations.

        A name that lacks this ending gets it.
        """
        path = Path(path)
        path = path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")
        steps = [row[:length] for row, length in zip(self.actions, self.lengths, strict=True)]
        begins = np.zeros(int(self.lengths.sum()), np.float32)
        begins[np.concatenate(([0], np.cumsum(self.lengths)[:-1]))] = 1
        data = io.BytesIO()
        arrays: dict[str, Any] = {"actions": np.concatenate(steps), "begins": begins}
        arrays |= {"env": np.array(self.env)} if self.env else {}
        np.savez_compressed(data, **arrays)
        return write_whole(path, data.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str], env: str | EnvSpec | Mapping[str, Any] | None = None) -> Self:
        """Read a recording or demonstrations; no code from the file is run.

        Args:
            path: file to read.
            env: environment of demonstrations whose file does not name it, as older files do not.

        Raises:
            BadRecording: the file holds no recording.
        """
        try:
            with open_npz(path) as file:
                if "lengths" in file.files:  # the form of files from older versions
                    return cls(file["actions"], file["lengths"].astype(np.int64))
                named = json.loads(str(file["env"])) if "env" in file.files else env
                if named is None and "observations" in file.files:
                    raise ValueError("it does not name its environment; give env=... of the task that was recorded")
                return cls.of_steps(file["actions"], file["begins"], named)
        except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise BadRecording(f"{path} must be an .npz file of recorded actions and begins, but: {error}") from None


class Replayed:
    """A policy that plays a recording.

    Each of N environments has its own cursor.
    """

    def __init__(self, recording: Recording, end: str = "raise", model: Callable[[Any], Any] | None = None):
        """Set the cursors to the beginning.

        Args:
            recording: the recording; it is not modified.
            end: what follows the last action: "raise" RecordingEnded, "loop" to the first action, or ask the "model".
            model: function that returns the action for one observation, such as `task.act`; only with end="model".

        Raises:
            BadRecording: `end` is unknown, or does not match `model`.
        """
        if end not in ENDS:
            raise BadRecording(f"what follows a record's end must be one of {', '.join(ENDS)}, but got {end!r}")
        if (end == "model") != (model is not None):
            raise BadRecording(f"a model goes with end='model', but got end={end!r} and {'a' if model else 'no'} model")
        self.recording, self.end, self.model = recording, end, model
        self.cursors = np.zeros(len(recording.lengths), np.int64)

    @classmethod
    def load(cls, path: str | os.PathLike[str], end: str = "raise", model: Callable[[Any], Any] | None = None) -> Self:
        """Create a policy that plays a file."""
        return cls(Recording.load(path), end, model)

    def reset(self, mask: Sequence[bool] | NDArray[np.bool_] | None = None) -> None:
        """Restart the recordings of all environments.

        A mask (N,) selects some of them.
        """
        self.cursors[slice(None) if mask is None else np.asarray(mask, bool)] = 0

    def __call__(self, observation: Any) -> Any:
        """Return the next action of a recording with one episode.

        Use `batch` for several.
        """
        if len(self.cursors) != 1:
            raise BadRecording(f"this record has {len(self.cursors)} episodes, one for each environment; call batch()")
        return self._next(0, observation)

    def predict(self, observation: Any) -> tuple[Any, None]:
        """Return the next action in the form of Stable-Baselines3's `predict`."""
        return self(observation), None

    def batch(self, observations: Sequence[Any] | Array) -> Any:
        """Return the next actions (N, ...) for the observations of N environments."""
        if len(observations) != len(self.cursors):
            raise BadRecording(
                f"a record of {len(self.cursors)} episodes plays in as many environments, but got "
                f"{len(observations)} observations"
            )
        actions = [self._next(env, observation) for env, observation in enumerate(observations)]
        if (joined := self.recording.joined) is None:
            return np.stack(actions)
        out: Any = create_empty_array(joined.space, len(actions))
        return concatenate(joined.space, actions, out)

    def _next(self, env: int, observation: Any) -> Any:
        cursor, length = int(self.cursors[env]), int(self.recording.lengths[env])
        if cursor == length:
            if self.model is not None:
                return self.model(observation)
            if self.end == "raise":
                raise RecordingEnded(
                    f"a recording is played once, and the {length} actions of episode {env} are; "
                    "reset() restarts it, and end='loop' does so automatically"
                )
            cursor = 0
        self.cursors[env] = cursor + 1
        action, joined = self.recording.actions[env, cursor], self.recording.joined
        return action if joined is None else joined.split(action)
