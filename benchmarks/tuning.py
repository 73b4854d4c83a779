"""Tuned agents beside those of peers, at equal environment steps: the returns of their winners on fresh seeds.

    python benchmarks/tuning.py CartPole-v1 [Acrobot-v1 ...] [--studies 10] [--trials 16] [--epochs 27] [--seeds 10]
                                [--sides rekindle random optuna-sb3 orion] [--results tuning.jsonl] [--show]

Each study is one search for PPO's hyperparameters by

    rekindle     `rekindle.tune` with its defaults
    random       the same task and space, random search, every trial trained to the end
    orion        the same task and space under Orion's ASHA
    optuna-sb3   Stable-Baselines3 under Optuna's TPE and Hyperband pruner, with rl-zoo's ranges

Rekindle's study is run first; the others may train as many environment steps as it did. The best trial that each names
is trained again to the end on fresh seeds, by the code that searched for it, and plays 50 episodes that are the same
for all. Every study runs in a process of its own and adds a line to the results when it is done; what is there already
is not run again. The table shows the interquartile mean over all winners' seeds with a 95% interval that resamples
studies, the probability that a study of Rekindle's has the better winner, and medians of the search's own time.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import rekindle
import torch
from rekindle.benchmarks.learning import our_player
from rekindle.benchmarks.peers import mean_return, player
from rekindle.spaces import fidelity, flatten, unflatten
from rekindle.studies.statistics.aggregates import iqm, probability_of_improvement
from rekindle.studies.statistics.intervals import TooFewRuns, interval

EPISODES = 50
FRESH = 10_000  # the first seed that winners are trained on
NUM_ENVS = 8  # of Stable-Baselines3, which has no default


class Job(NamedTuple):
    """One study of one side."""

    side: str
    env: str
    study: int
    trials: int
    epochs: int
    seeds: int
    epoch_steps: int
    steps: int  # that the search may train; 0 for Rekindle's own, which sets the measure

    @property
    def horizon(self) -> int:
        """Environment steps of a trial that is trained to the end."""
        return self.epochs * self.epoch_steps


Retrain = Callable[[], list[float]]  # trains the winner on the fresh seeds, and returns their returns


# --- the sides: each returns the steps that its search took, and how its winner is trained again ---


def search_with_rekindle(job: Job, url: str, **options: Any) -> tuple[int, Retrain]:
    """Search by `rekindle.tune`."""
    fixed = {"epoch_steps": job.epoch_steps}
    options = {"trials": job.trials, "epochs": (1, job.epochs), **options}
    found = rekindle.tune(
        rekindle.PPO, job.env, storage=url, study="s", seed=job.study, fixed=fixed, progress=False, **options
    )
    assert found.best is not None
    best = dict(found.best.hyperparameters)
    return sum(trial.epochs for trial in found.trials) * job.epoch_steps, lambda: _retrained(job, best)


def search_at_random(job: Job, url: str) -> tuple[int, Retrain]:
    """Search at random, with as many full trainings as the steps allow."""
    trials = max(1, round(job.steps / job.horizon))
    return search_with_rekindle(job, url, trials=trials, epochs=job.epochs, sampler="random", scheduler="none")


def search_with_orion(job: Job, url: str) -> tuple[int, Retrain]:
    """Search by Orion's ASHA; a promoted trial resumes, and its epochs count once."""
    from rekindle.spaces.drivers.to_orion import from_params
    from rekindle.studies.orion import hunt
    from rekindle.studies.orion.hunts import OrionObjective

    epochs = fidelity(1, job.epochs, 3)
    fixed: dict[str, Any] = {"epoch_steps": job.epoch_steps}
    space = OrionObjective(rekindle.PPO, job.env, storage=url, epochs=epochs, **fixed).space
    steps, most, best = 0, 0, dict[str, Any]()
    while steps < job.steps:
        most += 4
        client = hunt(
            rekindle.PPO,
            job.env,
            name="s",
            storage=url,
            max_trials=most,
            algorithm={"asha": {"num_brackets": 1, "num_rungs": max(2, 1 + round(math.log(job.epochs, 3)))}},
            epochs=epochs,
            seed=job.study,
            **fixed,
        )
        done = [trial for trial in client.fetch_trials() if trial.status == "completed"]
        by_config: dict[str, int] = {}
        for trial in done:
            by_config[trial.hash_params] = max(by_config.get(trial.hash_params, 0), int(trial.params["epochs"]))
        steps = sum(by_config.values()) * job.epoch_steps
        longest = max(int(trial.params["epochs"]) for trial in done)
        winner = min((t for t in done if t.params["epochs"] == longest), key=lambda t: t.objective.value)
        best = flatten({name: value for name, value in from_params(space, winner.params).items() if name != "epochs"})
    return steps, lambda: _retrained(job, {**best, "epoch_steps": job.epoch_steps})


def _retrained(job: Job, hyperparameters: Mapping[str, Any]) -> list[float]:
    """Return the returns of hyperparameters on fresh seeds, trained as one cohort."""
    values = unflatten(dict(hyperparameters))
    tasks: list[Any] = [rekindle.PPO(job.env, seed=FRESH + seed).init(**values) for seed in range(job.seeds)]
    rekindle.Cohort(tasks).fit(job.epochs)
    return [mean_return(job.env, our_player(task), EPISODES) for task in tasks]


def search_with_optuna_and_sb3(job: Job, url: str) -> tuple[int, Retrain]:
    """Search as rl-zoo does: TPE, a pruner, an evaluation of 10 episodes after every epoch."""
    spent = [0]

    def objective(trial: optuna.Trial) -> float:
        model, score = _sb3(job, _zoo(trial), job.study), -math.inf
        for epoch in range(1, job.epochs + 1):
            before = model.num_timesteps
            model.learn(max(1, epoch * job.epoch_steps - before), reset_num_timesteps=False)
            spent[0] += model.num_timesteps - before
            score = mean_return(job.env, player(model), 10)
            trial.report(score, epoch)
            if spent[0] >= job.steps:
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        trial.set_user_attr("epochs", epoch)
        return score

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=job.study),
        pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=job.epochs, reduction_factor=3),
    )
    while spent[0] < job.steps:
        study.optimize(objective, n_trials=1)
    best = _zoo(optuna.trial.FixedTrial(study.best_params))

    def retrain() -> list[float]:
        returns = []
        for seed in range(FRESH, FRESH + job.seeds):
            model = _sb3(job, best, seed)
            model.learn(job.horizon)
            returns.append(mean_return(job.env, player(model), EPISODES))
        return returns

    return spent[0], retrain


def _zoo(trial: optuna.Trial | optuna.trial.FixedTrial) -> dict[str, Any]:
    """Return PPO's arguments from the ranges that rl-zoo searches."""
    n_steps = trial.suggest_categorical("n_steps", [8, 16, 32, 64, 128, 256, 512, 1024, 2048])
    batch_size = trial.suggest_categorical("batch_size", [8, 16, 32, 64, 128, 256, 512])
    nets = {"tiny": [64], "small": [64, 64], "medium": [256, 256]}
    net = nets[trial.suggest_categorical("net_arch", list(nets))]
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[trial.suggest_categorical("act", ["tanh", "relu"])]
    return {
        "n_steps": n_steps,
        "batch_size": min(batch_size, n_steps * NUM_ENVS),
        "gamma": trial.suggest_categorical("gamma", [0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999]),
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1.0, log=True),
        "ent_coef": trial.suggest_float("ent_coef", 1e-8, 0.1, log=True),
        "clip_range": trial.suggest_categorical("clip_range", [0.1, 0.2, 0.3, 0.4]),
        "n_epochs": trial.suggest_categorical("n_epochs", [1, 5, 10, 20]),
        "gae_lambda": trial.suggest_categorical("gae_lambda", [0.8, 0.9, 0.92, 0.95, 0.98, 0.99, 1.0]),
        "max_grad_norm": trial.suggest_categorical("max_grad_norm", [0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 2, 5]),
        "vf_coef": trial.suggest_float("vf_coef", 0, 1),
        "policy_kwargs": {"net_arch": {"pi": net, "vf": net}, "activation_fn": activation, "ortho_init": False},
    }


def _sb3(job: Job, arguments: dict[str, Any], seed: int) -> Any:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    worlds = make_vec_env(job.env, n_envs=NUM_ENVS, seed=seed)
    return PPO("MlpPolicy", worlds, seed=seed, device="cpu", **arguments)


SIDES: dict[str, Callable[[Job, str], tuple[int, Retrain]]] = {
    "rekindle": search_with_rekindle,
    "random": search_at_random,
    "orion": search_with_orion,
    "optuna-sb3": search_with_optuna_and_sb3,
}


# --- running and showing them ---


def run(job: Job) -> dict[str, Any]:
    """Run one study, and train its winner again."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.monotonic(), _processor_time()
        steps, retrain = SIDES[job.side](job, f"sqlite:///{folder}/s.db")
        took = {"wall": time.monotonic() - wall, "cpu": _processor_time() - cpu}
        return {**job._asdict(), "searched_steps": steps, **took, "returns": retrain()}


def _processor_time() -> float:
    """Return the seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def show(rows: list[dict[str, Any]]) -> None:
    """Print a table for each environment."""
    for env in dict.fromkeys(row["env"] for row in rows):
        print(
            f"\n{env:18}{'studies':>8}{'IQM':>9}{'95% interval':>20}{'P(rekindle better)':>20}{'wall s':>9}{'cpu s':>8}"
        )
        ours = [row["returns"] for row in rows if (row["env"], row["side"]) == (env, "rekindle")]
        for side in SIDES:
            mine = [row for row in rows if (row["env"], row["side"]) == (env, side)]
            if not mine:
                continue
            returns = np.array([row["returns"] for row in mine])
            try:
                low, high = _interval(returns)
            except TooFewRuns:
                low = high = math.nan
            better = "" if side == "rekindle" or not ours else f"{_better(ours, returns):.2f}"
            took = [statistics.median(row[name] for row in mine) for name in ("wall", "cpu")]
            print(
                f"{side:18}{len(mine):8}{float(iqm(returns.reshape(-1, 1))):9.1f}{f'{low:.1f} to {high:.1f}':>20}"
                f"{better:>20}{took[0]:9.0f}{took[1]:8.0f}"
            )


def _interval(returns: np.ndarray[Any, Any]) -> tuple[float, float]:
    found = interval(lambda scores: iqm(scores), [returns.mean(1)[:, None]])
    return float(found.low), float(found.high)


def _better(ours: list[list[float]], theirs: np.ndarray[Any, Any]) -> float:
    mine = np.array(ours).mean(1)[:, None]
    return float(probability_of_improvement(mine, theirs.mean(1)[:, None]))


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", metavar="ENV")
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--trials", type=int, default=16, help="of Rekindle's study, which sets the steps of all")
    parser.add_argument("--epochs", type=int, default=27, help="of a trial that is trained to the end")
    parser.add_argument("--epoch-steps", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=10, help="that each winner is trained on again")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--results", type=Path, default=Path("tuning.jsonl"))
    parser.add_argument("--show", action="store_true", help="print the table of what is there")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(run(Job(*json.loads(options.job)))))
        return
    rows = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    for study in range(0 if options.show else options.studies):
        for env in options.envs:
            for side in sorted(options.sides, key=lambda side: side != "rekindle"):
                same = (env, study, options.trials, options.epochs, options.epoch_steps)
                known = {
                    row["side"]: row
                    for row in rows
                    if tuple(row[name] for name in ("env", "study", "trials", "epochs", "epoch_steps")) == same
                }
                if side in known:
                    continue
                if side != "rekindle" and "rekindle" not in known:
                    parser.error("the steps are Rekindle's: run the side rekindle first, or beside the others")
                steps = 0 if side == "rekindle" else known["rekindle"]["searched_steps"]
                job = Job(side, env, study, *same[2:4], options.seeds, options.epoch_steps, steps)
                done = subprocess.run(
                    [sys.executable, __file__, "--job", json.dumps(job)], stdout=subprocess.PIPE, text=True, check=True
                )
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                with options.results.open("a") as file:
                    print(json.dumps(rows[-1]), file=file)
                found = f"{statistics.fmean(rows[-1]['returns']):.1f} after {rows[-1]['searched_steps']:,} steps"
                print(f"{env} {study} {side}: {found}, {rows[-1]['cpu']:.0f} s of CPU", file=sys.stderr, flush=True)
    show(rows)


if __name__ == "__main__":
    main()
