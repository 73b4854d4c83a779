"""Rekindle's own tasks by name, without importing them.

A new algorithm is its file and a line here. Tests name what else must be written by hand: its documentation, its
exactness suite, and the import in the root's `__init__.py` from which type checkers know its class.
"""

from __future__ import annotations

import json
from pathlib import PurePath

ALGORITHMS = {
    "a2c": ".tasks.algorithms.a2c:A2C",
    "ars": ".tasks.algorithms.ars:ARS",
    "behaviours": ".tasks.algorithms.behaviours:Behaviours",
    "crossq": ".tasks.algorithms.continuous.crossq:CrossQ",
    "ddpg": ".tasks.algorithms.continuous.ddpg:DDPG",
    "dqn": ".tasks.algorithms.dqn.dqn:DQN",
    "ppo": ".tasks.algorithms.ppo:PPO",
    "ppo2": ".tasks.algorithms.ppo2:PPO2",
    "pqn": ".tasks.algorithms.pqn:PQN",
    "qrdqn": ".tasks.algorithms.dqn.qrdqn:QRDQN",
    "sac": ".tasks.algorithms.continuous.sac:SAC",
    "svpg": ".tasks.algorithms.svpg:SVPG",
    "svpg-ppo": ".tasks.algorithms.svpg:SVPGPPO",
    "svpg-ppo2": ".tasks.algorithms.svpg:SVPGPPO2",
    "td3": ".tasks.algorithms.continuous.td3:TD3",
    "tqc": ".tasks.algorithms.continuous.tqc:TQC",
    "trpo": ".tasks.algorithms.trpo:TRPO",
}
INSTRUMENTS = {  # an example, and tasks for testing drivers and schedulers
    "digits": ".tasks.examples.digits:Digits",
    "surrogate": ".tasks.algorithms.surrogate:Surrogate",
    "tabular": ".tasks.algorithms.tabular:Tabular",
}
CHOICES = {"auto": ".tasks.algorithms.auto:Auto"}  # tasks of studies alone, whose trials are other tasks
CLASSES = {name: module for module, _, name in (home.partition(":") for home in ALGORITHMS.values())}
MAKERS = {
    "command": ".tasks.adapters.programs:program_task",
    **dict.fromkeys(("sb3", "sbx"), ".tasks.adapters.sb3:model"),
}  # of task classes, by what precedes the colon of their names
_LSTM, _MASKS = "that is ppo with --set model.memory=lstm", "ppo and the others that choose obey masks as they are"
_OFTEN = "and several gradient steps per step (num_steps, num_updates)"
_CENTRAL = "--set NAME.critic.central=joint"
REFUSED = {
    "sb3": "a library's name is followed by an algorithm's, such as sb3:PPO",
    "sbx": "a library's name is followed by an algorithm's, such as sbx:PPO",
    **dict.fromkeys(
        ("stablebaselines3", "sb3contrib"), "its algorithms are tasks by their class names alone, such as sb3:TQC"
    ),
    "her": "that is an option of algorithms with replay, such as tqc or sac: --set replay.relabel=future",
    **dict.fromkeys(("ppolstm", "recurrentppo"), _LSTM),
    **dict.fromkeys(("maskableppo", "ppomask"), _MASKS),
    "rainbow": "that is dqn with --preset rainbow",
    "c51": "that is dqn with --set distribution=categorical",
    "ddqn": "that is dqn, which is double unless --set double=false",
    "redq": f"that is sac with --set critic.ensemble=10, {_OFTEN}",
    "droq": f"that is sac with --set critic.dropout=0.01 and --set critic.norm=layer, {_OFTEN}",
    "simba": "that is sac with --set critic.block=simba and --set model.block=simba",
    "ippo": "that is the task behaviours, whose behaviours learn by ppo",
    "mappo": f"that is the task behaviours, whose ppo takes a central critic: {_CENTRAL}",
    **dict.fromkeys(
        ("maddpg", "matd3"),
        "its central critic is not offered; use the task behaviours with --set NAME.algorithm=td3, or ppo with "
        f"{_CENTRAL}",
    ),
    **dict.fromkeys(
        ("qmix", "vdn"),
        "sums of the agents' values are not offered; use the task behaviours with --set NAME.algorithm=dqn, or ppo "
        f"with {_CENTRAL}",
    ),
    "poca": "its attention over the agents that are present is not offered; use the task behaviours, whose ppo takes "
    f"a central critic: {_CENTRAL}",
}  # reasons, by a name or what precedes its colon, in small letters without _ and -


PREFIX = "command:"  # of names of programs
NOT_CHECKED = "not checked; `rekindle check-resume` does"  # whether a program resumes exactly
UNKNOWN, DIFFERS = f" resumes exactly was {NOT_CHECKED}", " does not resume exactly: "


def resume_labels(title: str, differs: str | None) -> list[str]:
    """Return the reason why a program may not resume exactly, if any.

    `differs` is what `check-resume` found, "" for nothing; None if it was not run.
    """
    if differs is None:
        return [f"whether {title}{UNKNOWN}"]
    return [f"{title}{DIFFERS}{differs}"] if differs else []


def is_resume_label(text: str) -> bool:
    """Return whether a label of a task is one of `resume_labels`."""
    return UNKNOWN in text or DIFFERS in text


def label(task: str) -> str:
    """Return a task's name for people: of a program, its file."""
    if not task.startswith(PREFIX):
        return task
    try:
        words = json.loads(task.removeprefix(PREFIX))["run"]
    except (ValueError, LookupError, TypeError):
        return task
    return next((PurePath(word).name for word in words[1:] if PurePath(word).suffix), PurePath(words[0]).name)
