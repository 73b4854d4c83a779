"""Trainings of all algorithms in random environments with faults, drawn by hypothesis.

REKINDLE_SOAK=200 draws as many examples, others in every run.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("REKINDLE_SOAK", "0"))
ROLLOUTS = {"num_steps": 8, "num_envs": 1, "epoch_steps": 256, "model.width": 8}
REPLAYED = {"learning_starts": 16, "buffer_size": 64}
REPLAYS = {"num_envs": 1, "epoch_steps": 256, "model.width": 8, "batch_size": 8} | REPLAYED
MINIBATCHES = {**ROLLOUTS, "num_minibatches": 2}
HUNT = {"num_envs": 2, "epoch_steps": 256, "a.num_steps": 8, "a.num_minibatches": 2, "b.algorithm": "dqn"}
HUNT |= {"b.batch_size": 8} | {f"b.{name}": value for name, value in REPLAYED.items()}
MODELS = {"epoch_steps": 256, "batch_size": 32}  # of Stable-Baselines3
CHOICES = ["choice", "choices", "bits"]
NUMBERS = ["box", "table", "dose"]
ACTIONS = [*NUMBERS, *CHOICES]
PLAIN = [""]  # where a mask of actions stands
MASKED = ["observation", "info", "method"]
ANY = ["", "", *MASKED]
ALGORITHMS: dict[str, tuple[dict[str, Any], list[Any], list[str]]] = {  # values, actions, masks
    "ppo": (MINIBATCHES, [*ACTIONS, {"a": "dose"}], ANY),
    "ppo2": (MINIBATCHES, ACTIONS, ANY),
    "a2c": (ROLLOUTS, [*ACTIONS, {"a": "choice", "b": ["box", "bits"]}], ANY),
    "trpo": (MINIBATCHES, ACTIONS, ANY),
    "pqn": (MINIBATCHES, ["choice"], ANY),
    "svpg": ({**ROLLOUTS, "num_particles": 2}, ACTIONS, ANY),
    "svpg-ppo": ({**MINIBATCHES, "num_particles": 2}, ACTIONS, ANY),
    "ars": ({"num_envs": 2, "deltas": 4, "num_steps": 16, "epoch_steps": 256}, [*NUMBERS, "choice"], PLAIN),
    "dqn": (REPLAYS, ["choice"], ANY),
    "qrdqn": ({**REPLAYS, "quantiles": 5}, ["choice"], ANY),
    "sac": (REPLAYS, [*NUMBERS, {"a": "choice", "b": "box"}], PLAIN),
    "td3": (REPLAYS, NUMBERS, PLAIN),
    "ddpg": (REPLAYS, NUMBERS, PLAIN),
    "tqc": (REPLAYS, NUMBERS, PLAIN),
    "crossq": (REPLAYS, NUMBERS, PLAIN),
    "behaviours": (HUNT, ["choice"], PLAIN),
    "sb3:PPO": ({**MODELS, "n_steps": 64, "n_epochs": 1}, [*NUMBERS, "choice", "choices"], PLAIN),
    "sb3:A2C": ({"epoch_steps": 256, "n_steps": 8}, NUMBERS, PLAIN),
    "sb3:DQN": (MODELS | REPLAYED, ["choice"], PLAIN),
    "sb3:TD3": (MODELS | REPLAYED, NUMBERS, PLAIN),
    "sb3:TQC": (MODELS | REPLAYED, NUMBERS, PLAIN),
    "sb3:MaskablePPO": ({**MODELS, "n_steps": 64, "n_epochs": 1}, ["choice", "choices"], MASKED),
}
VECTORS = ["box", "table", "dose", "choice", "choices", "bits"]
IMAGES = ["board", "flags", "image"]
SEES_NO_IMAGES = ("td3", "ddpg", "tqc", "crossq", "ars")
UNSEEN = (
    "in place",
    "buffer",
    "settings",
    "leak",
    "endless info",
    "streams",
    "further parts",
)  # faults without an effect on episodes
HARMLESS = (*UNSEEN, "kept action", "global generator", "unseeded generator")
FAULTS = (
    *HARMLESS,
    *("clock", "entropy", "memory", "shared counter", "odd info", "broken close", "broken reset", "exit", "empty mask"),
    *("exception", "end of data", "nan", "rewards", "wrong shape", "nothing", "wrong key", "out of range"),
)
LATE = 600  # steps of an environment, more than those of a self-test and fewer than those of training
SEVERAL = "pettingzoo/faulty_envs:SoakOfMany"
KNOWN = (
    "the simulator is gone",
    "faults/Soak-v0",
    SEVERAL,
)  # an error of its own code, or one that names the environment


def spaces_of(leaves: list[str]) -> st.SearchStrategy[Any]:
    """Draw spaces nested three deep."""
    return st.recursive(
        st.sampled_from(leaves),
        lambda parts: (
            st.lists(parts, min_size=1, max_size=2) | st.dictionaries(st.sampled_from("abc"), parts, min_size=1)
        ),
        max_leaves=4,
    )


class Training(NamedTuple):
    """An algorithm, its hyperparameters, and an environment."""

    algorithm: str
    values: dict[str, Any]
    env: dict[str, Any]

    @property
    def faults(self) -> set[str]:
        return {*self.env["kwargs"]["faults"]}

    @property
    def late(self) -> bool:
        """Whether a fault shows later than a self-test can see."""
        return LATE in self.env["kwargs"]["faults"].values()


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    """A training, drawn by hypothesis."""
    name = draw(st.sampled_from(sorted(ALGORITHMS)))
    values, actions, masks = ALGORITHMS[name]
    do = draw(st.sampled_from(actions))
    told = draw(st.sampled_from(masks)) if do in CHOICES else ""
    faults = draw(st.dictionaries(st.sampled_from(FAULTS), st.sampled_from([0, 3, 60, LATE]), max_size=2))
    leaves = VECTORS if told or name in SEES_NO_IMAGES else VECTORS + IMAGES
    kwargs = {"see": draw(spaces_of(leaves)), "do": do, "length": draw(st.integers(1, 40)), "faults": faults}
    env: dict[str, Any] = {"id": "faulty_envs:faults/Soak-v0", "kwargs": {**kwargs, "told": told}}
    if name == "behaviours":
        env["id"] = SEVERAL
    if told == "info":
        env["masks"] = "info"
    if draw(st.booleans()):
        env["info"] = {"a.x": "last", "b_0.deep.y": "max"} if env["id"] == SEVERAL else {"x": "last", "deep.y": "max"}
    return Training(name, values, env)


SETTINGS = settings(
    max_examples=EXAMPLES or 20,
    deadline=None,
    derandomize=not EXAMPLES,
    phases=[Phase.generate],
    database=None,
    suppress_health_check=[*HealthCheck],
)
