"""Environments of other packages: trained, killed, resumed, and compared with a training that nothing disturbed.

    python benchmarks/packages.py [PACKAGE ...] [--write docs/packages.md]

For each environment, one process trains two epochs of PPO. Another is killed by SIGKILL amid its second epoch, and a
third resumes it. The table has the versions of the packages, what to type, whether both ended with the same digest, and
the label if an environment cannot be restored exactly. Packages that are not installed are left out, and named. With
--write the table replaces that of the page.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rekindle import PPO, Store

SMALL: dict[str, Any] = {"num_steps": 64, "num_envs": 2, "num_minibatches": 2, "update_epochs": 1, "epoch_steps": 256}
WEIGHTED = {"reward_weights": [0.5, 0.5]}
ENVIRONMENTS: list[tuple[str, Any]] = [
    ("gymnasium", "CartPole-v1"),
    ("gymnasium", "LunarLander-v3"),
    ("gymnasium", "HalfCheetah-v5"),
    ("gymnasium", "Taxi-v3"),
    ("ale-py", "ALE/Pong-v5"),
    ("minigrid", "minigrid:MiniGrid-DoorKey-5x5-v0"),
    ("minigrid", "minigrid:BabyAI-GoToRedBall-v0"),
    ("MinAtar", "minatar:MinAtar/Breakout-v1"),
    ("MinAtar", "minatar:MinAtar/Seaquest-v1"),
    ("popgym", "popgym:popgym-RepeatPreviousEasy-v0"),
    ("gymnasium-robotics", "gymnasium_robotics:FetchReach-v4"),
    ("gymnasium-robotics", "gymnasium_robotics:PointMaze_UMaze-v3"),
    ("panda-gym", "panda_gym:PandaReach-v3"),
    ("highway-env", "highway_env:highway-v0"),
    ("flappy-bird-gymnasium", "flappy_bird_gymnasium:FlappyBird-v0"),
    ("gym-anytrading", "gym_anytrading:stocks-v0"),
    ("mo-gymnasium", {"id": "mo_gymnasium:deep-sea-treasure-v0", **WEIGHTED}),
    ("mo-gymnasium", {"id": "mo_gymnasium:resource-gathering-v0", "reward_weights": [0.2, 0.4, 0.4]}),
    ("metaworld", {"id": "metaworld:Meta-World/MT1", "kwargs": {"env_name": "reach-v3"}}),
    ("mpe2", "pettingzoo/mpe2:simple_spread_v3"),
    ("envpool", "envpool/CartPole-v1"),
]
START, END = "<!-- table: benchmarks/packages.py -->", "<!-- end of table -->"
PATIENCE = 600.0  # seconds


def train(env: Any, url: str, epochs: int, killed: bool, sent: Any) -> None:
    """Train in this process, and send the digest and the label."""
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)  # simulators greet
        os.dup2(nothing.fileno(), 2)
    try:
        task = PPO(env, seed=1, storage=Store(url)).init(**SMALL)
        if killed:
            task.fit(1)
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
        task.fit(epochs)
        if killed:
            signal.pause()  # the last save may have come first
        sent.send({"digest": task.digest, "inexact": list(task.inexact), "resumed": bool(task.resumed)})
    except Exception as error:  # noqa: BLE001 - what fails is a result
        sent.send({"error": f"{type(error).__name__}: {error}"})


def in_process(*arguments: Any) -> dict[str, Any]:
    """Return what a forked process sent; {} if it was killed."""
    context = multiprocessing.get_context("fork")
    received, sent = context.Pipe(duplex=False)
    process = context.Process(target=train, args=(*arguments, sent))
    process.start()
    sent.close()
    try:
        answer: dict[str, Any] = received.recv() if received.poll(PATIENCE) else {"error": "took too long"}
    except EOFError:
        answer = {}
    process.join(10)
    process.kill()
    return answer


def tried(env: Any) -> str:
    """Return the outcome of one environment."""
    with tempfile.TemporaryDirectory() as folder:
        whole = in_process(env, f"sqlite:///{folder}/whole.db", 2, False)
        if "error" in whole:
            return f"fails: {whole['error']}"
        broken = in_process(env, f"sqlite:///{folder}/broken.db", 2, True)
        resumed = broken if "error" in broken else in_process(env, f"sqlite:///{folder}/broken.db", 2, False)
    if "error" in resumed or not resumed:
        return f"fails when it is resumed: {resumed.get('error', 'the process ended')}"
    label = f"labelled: {'; '.join(resumed['inexact'])}" if resumed["inexact"] else "exact"
    return f"{label}, {'equal' if resumed['digest'] == whole['digest'] else 'different'} digests"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", help="names as pip has them (default: all)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    arguments = parser.parse_args()
    rows, missing = [], []
    for package, env in ENVIRONMENTS:
        if arguments.packages and package not in arguments.packages:
            continue
        try:
            number = version(package)
        except PackageNotFoundError:
            missing.append(package)
            continue
        typed = env if isinstance(env, str) else json.dumps(env)
        rows.append(f"| {package} {number} | `{typed}` | {' '.join(tried(env).split())[:160].replace('|', '/')} |")
        print(rows[-1], flush=True)
    if missing:
        print(f"not installed: {', '.join(dict.fromkeys(missing))}", file=sys.stderr)
    if arguments.write is not None:
        table = "\n".join([START, "", "| package | environment | result |", "|---|---|---|", *rows, "", END])
        page = re.sub(rf"{START}.*?{END}", lambda _: table, arguments.write.read_text(), flags=re.DOTALL)
        arguments.write.write_text(page)


if __name__ == "__main__":
    main()
