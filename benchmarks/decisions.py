"""Processor time of each decision of the adaptive scheduler in a long study, and the longest of them.

    python benchmarks/decisions.py [--trials 10000]

The study is 10,000 trials long but for its last bracket, whose rungs are then planned one by one.
"""

from __future__ import annotations

import argparse
import random
import time

from rekindle.studies.schedulers.registry import scheduler
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.study.config import Config

RUNGS = (1, 2, 4, 8, 16, 20)


def decisions(trials: int) -> list[float]:
    """Return the milliseconds of each call of `plan` while the last bracket is worked off."""
    rng, took = random.Random(3), list[float]()
    config = Config("ppo", 1, {}, 0, {}, {}, [1, 20, 2], [trials], 12, sampler="tpe", scheduler="adaptive", options={})
    plans = scheduler(config)
    before = range(plans.brackets[-1].numbers.start)  # type: ignore[attr-defined]
    rows = (Segment(n, rung, RUNGS[rung], "done", rng.random()) for n in before for rung in range(6 if n % 6 else 1))
    plans.observe((Trial(n, f"u{n}", {}, state="pruned") for n in before), rows)
    plans.plan()  # what happened until now is read once
    while True:
        began = time.process_time()
        step = plans.plan()
        took.append(1e3 * (time.process_time() - began))
        if step.complete:
            return took
        new = [Trial(n, f"u{n}", {}) for n in step.ask or ()]
        ended = [Trial(n, f"u{n}", {}, state=state) for n, state in step.finished]
        ready = [*step.segments, *(Segment(trial.number, 0, 1) for trial in new)]
        plans.observe([*new, *ended], [Segment(r.number, r.rung, r.epochs, "done", rng.random()) for r in ready])


def main() -> None:
    """Print the milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    took = decisions(parser.parse_args().trials)
    print(f"{len(took)} decisions, each ms: {' '.join(f'{ms:.2f}' for ms in took)}; longest {max(took):.2f}")


if __name__ == "__main__":
    main()
