"""Tuned agents beside those of peers, at equal environment steps: the returns of their winners on fresh seeds.

    python benchmarks/tuning.py CartPole-v1 [Acrobot-v1 ...] [--studies 10] [--trials 16] [--epochs 27] [--seeds 10]
                                [--sides rekindle confirmed random optuna-sb3 orion] [--jobs 1]
                                [--results tuning.jsonl] [--show]

Each study is one search for PPO's hyperparameters by

    rekindle     `rekindle tune` with its defaults, so with a worker on each core
    confirmed    the same with `--confirm 3 --top 3`, which names the winner; it takes further steps
    random       the same task and space, random search, every trial trained to the end
    orion        the same task and space under Orion's ASHA, in one process
    optuna-sb3   Stable-Baselines3 under Optuna's TPE and Hyperband pruner, with rl-zoo's ranges, in one process

Rekindle's study is run first; the others may train as many environment steps as it did. The hyperparameters that each
names are trained again to the end on fresh seeds, by the code that searched for them, and play 50 episodes that are the
same for all. Every search, and every training of a winner, runs in a process of its own and adds a line to the results
when it is done; what is there already is not run again, nor is a winner that another search has named. The table shows
the interquartile mean over all winners' seeds with a 95% interval that resamples studies, the probability that a study
of Rekindle's has the better winner, and the medians of the search's own steps and times.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
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

Means = np.ndarray[Any, Any]
EPISODES = 50
FRESH = 10_000  # the first seed that winners are trained on
NUM_ENVS = 8  # of Stable-Baselines3, which has no default
SEEDS_AT_ONCE = {"optuna-sb3": 1}  # of the fresh ones, in one process; the others train them as one cohort
NAME = "s"  # of a study, alone in its database
TOP = 3  # candidates of a confirmation, besides the defaults: so few trials have no more that are worth it
LEAST_SEEDS = 3  # that a confirmation estimates its winner with, which is all that is asked of it here


class Study(NamedTuple):
    """One study of one side."""

    env: str
    number: int
    side: str
    trials: int
    epochs: int
    epoch_steps: int

    @property
    def horizon(self) -> int:
        """Environment steps of a trial that is trained to the end."""
        return self.epochs * self.epoch_steps


class Found(NamedTuple):
    """What a search ends with."""

    steps: int
    best: dict[str, Any]


# --- the sides: how each searches, within a number of steps, and how it trains its winner again ---


def search_with_rekindle(study: Study, steps: int, url: str, **options: Any) -> Found:
    """Search by `rekindle tune`."""
    tuned = _tuned(study, url, **options)
    assert tuned.best is not None
    return Found(_steps(study, tuned), dict(tuned.best.hyperparameters))


def search_and_confirm(study: Study, steps: int, url: str) -> Found:
    """Search by `rekindle tune`, and confirm the winner."""
    tuned = _tuned(study, url, confirm=LEAST_SEEDS, top=TOP)
    answer = tuned.confirm(top=TOP, seeds=LEAST_SEEDS, progress=False)  # reads what is there
    winner = answer["candidates"][answer["winner"]]
    return Found(_steps(study, tuned) + answer["cost"]["epochs"] * study.epoch_steps, winner["hyperparameters"])


def search_at_random(study: Study, steps: int, url: str) -> Found:
    """Search at random, with as many full trainings as the steps allow."""
    trials = max(1, round(steps / study.horizon))
    return search_with_rekindle(
        study, steps, url, trials=trials, epochs=study.epochs, sampler="random", scheduler="none"
    )


def _tuned(study: Study, url: str, **options: Any) -> rekindle.Study:
    options = {"trials": study.trials, "epochs": f"1:{study.epochs}", "seed": study.number, **options}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    fixed = f"epoch_steps={study.epoch_steps}"
    _rekindle("tune", "ppo", study.env, "--study", NAME, "--storage", url, "--set", fixed, *words)
    return rekindle.Study(NAME, url)


def _rekindle(*words: Any) -> None:
    """Run a command to its end."""
    subprocess.run([sys.executable, "-m", "rekindle", *map(str, words)], stdout=subprocess.DEVNULL, check=True)


def _steps(study: Study, tuned: rekindle.Study) -> int:
    return sum(trial.epochs for trial in tuned.trials) * study.epoch_steps


def search_with_orion(study: Study, steps: int, url: str) -> Found:
    """Search by Orion's ASHA; a promoted trial resumes, and its epochs count once."""
    from rekindle.spaces.drivers.to_orion import from_params
    from rekindle.studies.orion import hunt
    from rekindle.studies.orion.hunts import OrionObjective

    epochs = fidelity(1, study.epochs, 3)
    fixed: dict[str, Any] = {"epoch_steps": study.epoch_steps}
    space = OrionObjective(rekindle.PPO, study.env, storage=url, epochs=epochs, **fixed).space
    spent, most, best = 0, 0, dict[str, Any]()
    while spent < steps:
        most += 4
        client = hunt(
            rekindle.PPO,
            study.env,
            name="s",
            storage=url,
            max_trials=most,
            algorithm={"asha": {"num_brackets": 1, "num_rungs": max(2, 1 + round(math.log(study.epochs, 3)))}},
            epochs=epochs,
            seed=study.number,
            **fixed,
        )
        done = [trial for trial in client.fetch_trials() if trial.status == "completed"]
        by_config: dict[str, int] = {}
        for trial in done:
            by_config[trial.hash_params] = max(by_config.get(trial.hash_params, 0), int(trial.params["epochs"]))
        spent = sum(by_config.values()) * study.epoch_steps
        longest = max(int(trial.params["epochs"]) for trial in done)
        winner = min((t for t in done if t.params["epochs"] == longest), key=lambda t: t.objective.value)
        best = flatten({name: value for name, value in from_params(space, winner.params).items() if name != "epochs"})
    return Found(spent, {**best, **fixed})


def train_with_rekindle(study: Study, hyperparameters: Mapping[str, Any], seeds: Sequence[int]) -> list[float]:
    """Return the returns of hyperparameters on seeds, trained as one cohort."""
    values = unflatten(dict(hyperparameters))
    tasks: list[Any] = [rekindle.PPO(study.env, seed=seed).init(**values) for seed in seeds]
    rekindle.Cohort(tasks).fit(study.epochs)
    return [mean_return(study.env, our_player(task), EPISODES) for task in tasks]


def search_with_optuna_and_sb3(study: Study, steps: int, url: str) -> Found:
    """Search as rl-zoo does: TPE, a pruner, an evaluation of 10 episodes after every epoch."""
    spent = [0]

    def objective(trial: optuna.Trial) -> float:
        model, score = _sb3(study, _zoo(trial), study.number), -math.inf
        for epoch in range(1, study.epochs + 1):
            before = model.num_timesteps
            try:
                model.learn(max(1, epoch * study.epoch_steps - before), reset_num_timesteps=False)
            except ValueError as error:  # NaN as an action's mean; rl-zoo prunes such trials, too
                raise optuna.TrialPruned from error
            finally:
                spent[0] += model.num_timesteps - before
            score = mean_return(study.env, player(model), 10)
            trial.report(score, epoch)
            if spent[0] >= steps:
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return score

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=study.number),
        pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=study.epochs, reduction_factor=3),
    )
    while spent[0] < steps:
        search.optimize(objective, n_trials=1)
    return Found(spent[0], search.best_params)


def train_with_sb3(study: Study, hyperparameters: Mapping[str, Any], seeds: Sequence[int]) -> list[float]:
    """Return the returns of hyperparameters on seeds."""
    arguments, returns = _zoo(optuna.trial.FixedTrial(dict(hyperparameters))), []
    for seed in seeds:
        model = _sb3(study, arguments, seed)
        model.learn(study.horizon)
        returns.append(mean_return(study.env, player(model), EPISODES))
    return returns


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


def _sb3(study: Study, arguments: dict[str, Any], seed: int) -> Any:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    worlds = make_vec_env(study.env, n_envs=NUM_ENVS, seed=seed)
    return PPO("MlpPolicy", worlds, seed=seed, device="cpu", **arguments)


Search = Callable[[Study, int, str], Found]
Train = Callable[[Study, Mapping[str, Any], Sequence[int]], list[float]]
SIDES: dict[str, tuple[Search, Train]] = {
    "rekindle": (search_with_rekindle, train_with_rekindle),
    "confirmed": (search_and_confirm, train_with_rekindle),
    "random": (search_at_random, train_with_rekindle),
    "orion": (search_with_orion, train_with_rekindle),
    "optuna-sb3": (search_with_optuna_and_sb3, train_with_sb3),
}


# --- running and showing them ---


def searched(study: Study, steps: int) -> dict[str, Any]:
    """Search within a number of steps, 0 for what the side takes."""
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.monotonic(), _processor_time()
        result = SIDES[study.side][0](study, steps, f"sqlite:///{folder}/s.db")
        return {**result._asdict(), "wall": time.monotonic() - wall, "cpu": _processor_time() - cpu}


def trained(study: Study, best: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    """Train a search's winner on fresh seeds."""
    return {"returns": dict(zip(map(str, seeds), SIDES[study.side][1](study, best, seeds), strict=True))}


def _processor_time() -> float:
    """Return the seconds of this process and its children."""
    usages = [resource.getrusage(process) for process in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Results:
    """The file of what was run: a line for each search, and for each training of a winner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.searches: dict[Study, dict[str, Any]] = {}
        self.returns: dict[Study, dict[str, float]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            self._take(json.loads(line))

    def known_returns(self, study: Study) -> dict[str, float]:
        """Return a winner's returns by seed, whichever searches have named it: it trains to the same bits."""
        best, train = self.searches[study]["best"], SIDES[study.side][1]
        known_returns: dict[str, float] = {}
        for other, returns in self.returns.items():
            alike = other._replace(number=study.number, side=study.side, trials=study.trials) == study
            if alike and SIDES[other.side][1] is train and self.searches[other]["best"] == best:
                known_returns |= returns
        return known_returns

    def add(self, study: Study, result: Mapping[str, Any]) -> None:
        """Keep what a process found."""
        line = {**study._asdict(), **result}
        with self.path.open("a") as file:
            print(json.dumps(line), file=file)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        study = Study(**{name: line.pop(name) for name in Study._fields})
        if "returns" in line:
            self.returns.setdefault(study, {}).update(line["returns"])
        else:
            self.searches[study] = line

    def complete(self, env: str, side: str) -> list[Study]:
        """Return the studies whose winners were trained on as many seeds as any was."""
        mine = [study for study in self.returns if (study.env, study.side) == (env, side)]
        most = max((len(self.returns[study]) for study in mine), default=0)
        return [study for study in mine if len(self.returns[study]) == most]


Job = tuple[str, Study, Any, Any]  # the function's name and its arguments


def missing(results: Results, studies: Sequence[Study], seeds: int) -> list[Job]:
    """Return what can be run now; the searches first."""
    searches: list[Job] = []
    trainings: list[Job] = []
    for study in studies:
        ours = results.searches.get(study._replace(side="rekindle"))
        if study in results.searches:
            known_returns, best = results.known_returns(study), results.searches[study]["best"]
            if known_returns != results.returns.get(study, {}):
                results.add(study, {"returns": known_returns})
            fresh = [seed for seed in range(FRESH, FRESH + seeds) if str(seed) not in known_returns]
            at_once = SEEDS_AT_ONCE.get(study.side, seeds)
            parts = [fresh[first : first + at_once] for first in range(0, len(fresh), at_once)]
            trainings += [("trained", study, best, part) for part in parts]
        elif study.side == "rekindle" or ours is not None:
            searches.append(("searched", study, ours["steps"] if ours else 0, None))
    return sorted(searches, key=lambda job: job[1].side != "rekindle") + trainings


def run(results: Results, studies: Sequence[Study], seeds: int, jobs: int) -> None:
    """Run what is missing in so many processes at a time."""
    running: dict[Future[dict[str, Any]], Job] = {}
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            now = list(running.values())
            for job in missing(results, studies, seeds):
                if len(running) < jobs and job not in now:
                    running[pool.submit(in_a_process, job)] = job
            if not running:
                return
            done = wait(running, return_when=FIRST_COMPLETED).done
            for future in done:
                step, study, *_ = running.pop(future)
                results.add(study, result := future.result())
                text = f"{result['steps']:,} steps, {result['cpu']:.0f} s of CPU" if step == "searched" else result
                print(f"{study.env} {study.number} {study.side}: {text}", file=sys.stderr, flush=True)


def in_a_process(job: Job) -> dict[str, Any]:
    """Run a job in a process of its own."""
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def answer(job: str) -> dict[str, Any]:
    """Run a job in this process."""
    torch.set_num_threads(1)
    step, study, first, second = json.loads(job)
    if step == "searched":
        return searched(Study(*study), first)
    return trained(Study(*study), first, second)


def show(results: Results) -> None:
    """Print a table for each environment."""
    for env in dict.fromkeys(study.env for study in results.searches):
        head = f"{'IQM':>9}{'95% interval':>20}{'P(rekindle better)':>20}{'steps':>11}{'wall s':>9}{'cpu s':>8}"
        print(f"\n{env:18}{'studies':>8}{head}")
        ours = _means(results, env, "rekindle")
        for side in SIDES:
            means = _means(results, env, side)
            if not len(means):
                continue
            mine = results.complete(env, side)
            returns = np.array([list(results.returns[study].values()) for study in mine])
            try:
                low, high = _interval(returns)
            except TooFewRuns:
                low = high = math.nan
            better = "" if side == "rekindle" or not len(ours) else f"{_better(ours, means):.2f}"
            searches = [results.searches[study] for study in mine]
            steps, wall, cpu = (
                statistics.median(search[name] for search in searches) for name in ("steps", "wall", "cpu")
            )
            print(
                f"{side:18}{len(mine):8}{float(iqm(returns)):9.1f}{f'{low:.1f} to {high:.1f}':>20}"
                f"{better:>20}{steps:11,.0f}{wall:9.0f}{cpu:8.0f}"
            )


def _means(results: Results, env: str, side: str) -> Means:
    """Return the mean return of each study's winner, shape (studies, 1)."""
    means = [statistics.fmean(results.returns[study].values()) for study in results.complete(env, side)]
    return np.array(means).reshape(-1, 1)


def _interval(returns: Means) -> tuple[float, float]:
    """Return the ends of the interval of the IQM of returns (studies, seeds); whole studies are drawn."""
    ends = interval(lambda drawn: iqm(returns[drawn[..., 0].astype(int)]), np.arange(len(returns))[:, None])
    return ends.low, ends.high


def _better(ours: Means, theirs: Means) -> float:
    return float(probability_of_improvement(ours, theirs))


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="*", metavar="ENV")
    parser.add_argument("--studies", type=int, default=10)
    parser.add_argument("--trials", type=int, default=16, help="of Rekindle's study, which sets the steps of all")
    parser.add_argument("--epochs", type=int, default=27, help="of a trial that is trained to the end")
    parser.add_argument("--epoch-steps", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=10, help="that each winner is trained on again")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--results", type=Path, default=Path("tuning.jsonl"))
    parser.add_argument("--show", action="store_true", help="print the table of what is there")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(answer(options.job)))
        return
    results = Results(options.results)
    size = (options.trials, options.epochs, options.epoch_steps)
    sides = dict.fromkeys(("rekindle", *options.sides))
    studies = [Study(env, n, side, *size) for n in range(options.studies) for env in options.envs for side in sides]
    if not options.show:
        run(results, studies, options.seeds, options.jobs)
    show(results)


if __name__ == "__main__":
    main()
