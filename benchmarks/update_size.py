"""Code that one update runs through: files, functions and their lines, counted by `sys.settrace`.

    python benchmarks/update_size.py [--list]     # PPO and SAC by kernels; bodies of kernels are not counted

An update is one `iterate` of a learner, with its rollout or steps. It measures how far a reader has to go.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import rekindle
from rekindle import PPO, SAC, Task
from rekindle.tasks.runtime.threads import one_thread

ROOT = f"{Path(rekindle.__file__).parent}/"
COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>")


def codes_of_update(task: type[Task], env: str, before: int, **values: Any) -> list[CodeType]:
    """Return the code objects of an update that follows `before` others, in the order of files."""
    instance = task(env, seed=0).init(**values)
    learner: Any = task.learner(instance.env, [0], [instance.hyperparameters or {}])
    for _ in range(before):
        learner.iterate()
        learner.iterations += 1
    codes: set[CodeType] = set()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(ROOT) and ".venv" not in code.co_filename:
            codes.add(code)

    sys.settrace(trace)
    learner.iterate()
    sys.settrace(None)
    functions = (code for code in codes if code.co_name not in COMPREHENSIONS)
    return sorted(functions, key=lambda code: (code.co_filename, code.co_firstlineno))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every function, too")
    options = parser.parse_args()
    with one_thread():
        updates = {
            "PPO": codes_of_update(PPO, "CartPole-v1", 2),
            "SAC": codes_of_update(SAC, "Pendulum-v1", 300, learning_starts=256),
        }
    for name, codes in updates.items():
        sizes = [len(inspect.getsourcelines(code)[0]) for code in codes]
        print(f"{name}: {len({code.co_filename for code in codes})} files, {len(codes)} functions, {sum(sizes)} lines")
        for code, size in zip(codes, sizes, strict=True) if options.list else ():
            print(f"    {code.co_filename.removeprefix(ROOT)}: {code.co_qualname}, {size}")


if __name__ == "__main__":
    main()
