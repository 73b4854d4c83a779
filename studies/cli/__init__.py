r"""Command line ``rekindle``: its commands, exit statuses and JSON output.

This package parses options and prints results; `cli.commands` has a module for each command, `cli.output` the tables
and the live progress. Other packages never import it.

Results are printed to stdout, progress and errors to stderr. Exit status: 0 done; 1 failed (a loss became NaN, the
database stopped answering, ...); 2 bad input; 130 and 143 stopped by SIGINT and SIGTERM, with everything saved.

With ``--json`` stdout is one JSON object, whose names are stable within one "format" (now 1; new names may be added).
``evaluate``, ``export-policy`` and ``import-policy`` are documented in `cli.commands.policy`, ``fsck``, ``gc``,
``export`` and ``import`` in `cli.commands.upkeep`, ``export-curves`` in `cli.commands.live.curves`:

    tune, trials  format, study, state ("running", "paused", "stopped", "complete"),
                  held (the command that stopped or paused it, or null; who is "budget", "goal" or "plateau" where a
                  bound did, and why says it), commands (as of stop, in their order; kind is also "bound", "weight", and
                  "check", a result tested against the goal, whose data are trial, epochs, episodes, mean, error and
                  confirmed),
                  task, env {id, kwargs, wrappers, max_episode_steps},
                  with several environments also environments [as env], and then seeds counts trainings in all of them
                  and return is their aggregate on one scale,
                  seed, seeds, weight (among studies that share workers), aggregate, spared (seeds that --racing left
                  untrained), sampler, scheduler,
                  rungs [epochs], fixed {dotted name: value}, trials_total,
                  counts {complete, pruned, failed, cancelled, running, waiting}, brackets (how many have begun),
                  progress [{rung, epochs, ready, done, failed}] (how many trainings to each rung),
                  agreement [{epochs, next (epochs), trials, correlation, interval [low, high], misleads}] (rank
                  correlation of each rung with the next one among all trials, estimated from those that went on, its
                  95% interval, and whether that is below 0.5),
                  objectives {name: "maximize" or "minimize"},
                  confirmation (null, or as of confirm),
                  best (a trial or null), front [numbers of the trials that trained longest and that no other one
                  dominates, the best in the first objective first], trials [trial]
      trial       number, uid, state ("running" (a process trains it now), "waiting" (begun, and no process does),
                  "complete", "pruned", "failed", "cancelled"), excluded (true of what `exclude` names, which is never
                  the best), bracket, rung (the last one that it was promoted to, or null), member (of a population),
                  branch (null, or {trial, uid, epochs, digest} that it starts from), epochs, return,
                  objectives (null where the return is the only one, else {name: number}), digest,
                  hyperparameters {dotted name: value}, error (text or null),
                  rungs [{rung, epochs, state ("ready", "done", "failed"), return, digest}]
                  with several seeds also seeds [{seed, uid, state, epochs, return, digest}], with several environments
                  each with env, and environments {env: the mean of its returns, or null}; return is the aggregate
                  of those trained so far, which are not all where --racing ruled a configuration out
                  epochs, return and digest are those of its last finished rung (0 and null before the first)
    confirm       format, study, confirmation (the name of the study that trains it), state, objective, epochs, seeds
                  (of an estimate), race_seeds, candidates [{trial (number, null for the defaults), defaults (whether
                  it has them), hyperparameters, claim (its result in the search, or null), race {seeds, mean}, estimate
                  (null, or {value, low, high (95%), seeds, failed, results})}], winner, runner_up (indices of
                  candidates, or null), over_defaults, over_runner_up (null, or {estimate, low, high}: the probability
                  that a training of the winner is better), optimism (claim less estimate, or null),
                  cost {trainings, epochs}; of several environments also across (their aggregate, on whose scale all
                  results are), and environments {env: {value, low, high}, as measured} of each estimate
    compare       format, objective, direction, environments [{env, scale (null, or [what counts as 0, as 1])}],
                  scale (null, "given" or "observed"), sides [{label, runs, sources [{source, env, kind ("confirmed",
                  "selected" or "file"), epochs (or null), results}], iqm, median, mean, optimality_gap (only with
                  --scale), each {estimate, low, high (95%)}}], pairs [{better, than, estimate (the probability that a
                  run of the first beats one of the second), low, high}],
                  profiles {thresholds, sides {label: {fraction (of runs above each threshold), low, high}}}
    diagnose      format, study, objective, results, configurations (how many), importances [{name, estimate (its share
                  of the results' variance), low, high (95%)}], marginals [{name, points [{value, estimate (how far the
                  objective lies above its rung's mean), low, high}]}], pairs [{names, estimate (what both explain
                  beyond each), low, high}], findings [{check ("edge", "no effect", "seeds",
                  "first rung", "failures", "idle" or "pruned"), text, cure}]
    report        format, file, studies [what the report shows of each: study (as tune), confirmation,
                  verdict [sentences], epochs (trained in all), curves {metric, trials {number: [[epoch, value]]}},
                  importances, marginals, pairs and findings (as of diagnose, without a forest),
                  correlations [{low, high (epochs), trials, correlation}], timeline, failures {kind: times}, ...]
    plot          format, file, study, kind
    watch         format, study, title, seed, state (as of status), counts {state: number},
                  rungs [{epochs, done, expected (trials)}], epochs, epochs_total, env_steps, env_steps_per_second,
                  epochs_per_second, seconds_left (or null), best (null, or {value, trial, epochs}),
                  running [{trial, seed (its index, null of one), env (null of one), uid, epochs, target,
                  curve [the last values], worker, seconds (since that took it)}],
                  workers [{name, state ("trains", "silent", "died"), trials, seconds}],
                  failures [{time, trial, kind, retry, text}]; live.json of serve is the same
    serve         format, url, as soon as it answers
    train         format, uid, task, env, seed, epochs, return, digest, resumed, hyperparameters, metrics {name: number}
    create        as tune
    tasks         format, storage, tasks [{uid, task, env, seed, epochs, return (the last one, or null)}]
    space         format, task, env (text or null), hyperparameters [{name, searched (a prior or null), default,
                  when [conditions]}]
    worker        format, and the study as in status, as it is when this worker ends; of several, storage and studies
    stop, pause, resume, cancel, exclude, enqueue, extend
                  format, study, number (among the study's commands), kind, data, who, why, created
    status        format, storage, studies [as tune, without trials, and workers (how many train it now); state is
                  also "stalled" where nobody trains what is left],
                  workers [{host, pid, trials [{study, number}], seconds (since it took the first), lease_left (seconds
                  until others may take them, unless its heartbeat renews its lease)}], tasks (how many)
    show          format, uid, task, env, seed, epochs, return, digest, owner (text or null), hyperparameters,
                  trials [{study, number, state}], metrics [{epoch, name: number}],
                  lineage [{uid, until (epochs)}] from its root to itself,
                  checkpoints [{epochs, within_epoch (whether within the next), digest, bytes, created, kept (why)}],
                  events [{time, kind, ...}]
                  with --config also config (the run file)
    import-config format, config (the run file), without [what has no counterpart]
    replay        format, uid, equal, epochs, digest, replayed (digest or null), reason (text or null),
                  lineage [{uid, from (epochs), to (epochs), digest}]
    schedule      format, uid, epochs, stages [{from, to (epochs), hyperparameters (those that change)}], recorded (its
                  result), schedule, last (its last hyperparameters all along), gain (the one less the other, seed by
                  seed), each {value, low, high (95%), results}, luck (recorded less schedule)
    fork          as train, and from (uid), at (epochs), changed {dotted name: [old, new]}, return_before

``--set:NAME VALUE`` is another spelling of ``--set NAME=VALUE`` for Orion, whose parser gives priors to the names of
options and takes each name once:

    orion hunt -n cartpole rekindle train ppo CartPole-v1 --set:optimizer.lr~'loguniform(1e-5, 1e-2)' \
        --set:epoch_steps 1024 --epochs~'fidelity(1, 27, 3)'

Under Orion, ``rekindle train`` reports to it, resumes from the checkpoint of a lower rung, drops hyperparameters that
do not apply, and stores its checkpoints in Orion's database if ORION_DB_TYPE is rekindlesql and ORION_DB_ADDRESS names
the database; then a trial of Orion's PBT starts from the final state of its parent. A trial stopped by SIGTERM or
SIGINT is interrupted and retried, and so is one whose process is killed, up to a limit; a trial that fails is broken.
--warm-start gives all trials of a hunt a policy to start from. With -vv Orion itself logs ORION_DB_ADDRESS: keep the
password in ~/.pgpass or PGPASSWORD.

``return`` is the mean undiscounted return of greedy evaluation episodes on seeds that no training uses; ``digest`` is
the sha256 of the canonical form of the whole training state; times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    from .dispatch import main as run

    return run(argv)
