r"""Command line ``rekindle``: its commands, exit statuses and JSON output.

This package parses options and prints results. `cli.commands` has a module for each command, and `cli.output` the
tables and the live progress. Other packages never import it.

Results go to stdout, progress and errors to stderr. Exit status: 0 done; 1 failed (a loss became NaN, the database
stopped answering, ...); 2 bad input; 130 and 143 stopped by SIGINT and SIGTERM, with everything saved.

With ``--json``, stdout is one JSON object. Its names are stable within one "format" (now 1); new names may be added.
``evaluate``, ``export-policy`` and ``import-policy`` are documented in `cli.commands.policy`; ``match`` in
`cli.commands.match`; ``fsck``, ``gc``, ``delete``, ``export`` and ``import`` in `cli.commands.upkeep`;
``export-curves`` in `cli.commands.curves`; ``plugins`` in `cli.commands.plugins`:

    tune, trials  format, study, state ("running", "paused", "stopped", "complete"),
                  held (the command that stopped or paused it, or null; if a bound stopped it, who is "budget", "goal"
                  or "plateau", and why explains it), commands (as for stop, in order; kind is also "bound", "weight",
                  or "check" for a result tested against the goal, with trial, seed (if trials have several), epochs,
                  episodes, mean, error and confirmed as data),
                  task, env {id, kwargs, wrappers, max_episode_steps},
                  with several environments also environments [as env]; seeds then counts the trainings in all of them,
                  and return is their aggregate on one scale,
                  seed, seeds, weight (among studies that share workers), aggregate, spared (seeds that --racing left
                  untrained), sampler, scheduler,
                  rungs [epochs], fixed {dotted name: value}, trials_total,
                  counts {complete, pruned, failed, cancelled, running, waiting}, brackets (number begun),
                  progress [{rung, epochs, ready, done, failed}] (number of trainings to each rung),
                  agreement [{epochs, next (epochs), trials, correlation, interval [low, high], misleads}] (rank
                  correlation of each rung with the next among all trials, estimated from those that continued; its
                  95% interval; and whether that is below 0.5; if all results of a rung are equal, correlation and
                  interval are null, and it misleads if one of the next rung differs),
                  objectives {name: "maximize" or "minimize"},
                  inexact and advice {text: number of trainings that say so},
                  probe (null before it, or what random actions and untrained policies found in the environment:
                  seed, steps, random [returns], untrained [returns, by policy], lengths and terminated (of complete
                  episodes), rewards and observations (null, or {low, high (standard deviations), mean, drift}),
                  zero_rewards (share), restore {mode, exact, reason}, masks, goals, failures [text], slow (null, or
                  seconds of a step), baselines {random, untrained: {value, low, high, runs}}, text, warnings),
                  confirmation (null, or as for confirm),
                  best (a trial or null; of a confirmation the winner, and results of candidates are estimates),
                  front [numbers of the nondominated trials among those that trained longest, best in the first
                  objective first], trials [trial]
      trial       number, uid, state ("running" (a process trains it now), "waiting" (begun, but no process trains it),
                  "complete", "pruned", "failed", "cancelled"), excluded (true for a trial that `exclude` named, which
                  is never the best), bracket, rung (the last one to which it was promoted, or null), member (of a
                  population), branch (null, or its start {trial, uid, epochs, digest}), epochs, return,
                  objectives (null if the return is the only one, else {name: number}), digest,
                  hyperparameters {dotted name: value}, error (text or null),
                  rungs [{rung, epochs, state ("ready", "done", "failed"), return, digest}];
                  of a confirmation also candidate {trial (number in the study, or null), defaults};
                  with several seeds also seeds [{seed, uid, state, epochs, return, digest}]; with several environments,
                  these have env, and there is environments {env: mean of its returns, or null}; return is the
                  aggregate of those trained so far, which are not all if --racing ruled the configuration out;
                  epochs, return and digest are those of its last finished rung (0 and null before the first)
    confirm       format, study, confirmation (name of the study that trains it), state, objective, direction, epochs,
                  seeds (of an estimate), race_seeds, candidates [{trial (number, or null for the defaults), defaults
                  (whether it has them), hyperparameters, claim (its result in the search after as many epochs, or
                  null), race {seeds, mean, failed}, estimate (null, or {value, low, high (95%), seeds, failed,
                  results})}], winner, runner_up (indices of candidates, or null), over_defaults, over_runner_up (null,
                  or {estimate, low, high}: the probability that a training of the winner is better), optimism (claim
                  minus estimate, or null), cost {trainings, epochs, failed (trainings beside these)}, since (null, or
                  {best [trials that took no part and are now among the best], excluded (whether the winner has been
                  excluded)}), earlier [names of earlier confirmations of the study, of whose seeds it uses none]; with
                  several environments also across (the aggregate; all results are on its scale, on which 0 is the best
                  of a minimized objective), and environments in each candidate (null without an estimate, or {env:
                  {value, low, high}, as measured; null of fewer than three seeds})
    compare       format, objective, direction, environments [{env, scale (null, or [result that counts as 0, as 1])}],
                  scale (null, "given" or "observed"), left_out [{label, env}] (environments that other sides lack),
                  sides [{label, runs, coverage (null from ten runs on, or {iqm, mean: [low, high]}, the share of such
                  intervals that contained the truth in simulations), sources [{source, env, kind ("confirmed",
                  "selected" or "file"), epochs (or null), env_steps (of a run in a file, or null), results}],
                  iqm, median, mean, optimality_gap (only with --scale), each {estimate, low, high (95%)}}],
                  pairs [{better, than, estimate (probability that a run of the first side is better than one of the
                  second), low, high}],
                  profiles {thresholds, sides {label: {fraction (of runs above each threshold), low, high}}}
    diagnose      format, study, objective, results, configurations (number), unlearned (whether no result is
                  better than those of untrained policies; then there are no importances),
                  importances [{name, estimate (share of the results' variance), low, high (95%)}],
                  marginals [{name, points [{value, estimate (distance of the objective above its rung's mean), low,
                  high}]}], pairs [{names, estimate (share that both explain beyond each alone), low, high}],
                  findings [{check ("nothing learned", "one learned", "equal",
                  "too short", "edge", "no effect", "seeds", "first rung", "failures", "idle" or "pruned"), text, cure}]
    report        format, file, studies [content of the report: study (as for tune), confirmation (the last
                  complete one, if there is any), unfinished (a further one that is not complete, or null),
                  verdict [sentences], epochs (total trained), curves {metric, trials {number: [[epoch, value]]}},
                  importances, marginals, pairs and findings (as for diagnose),
                  correlations [{low, high (epochs), trials, correlation}], timeline, failures {kind: number}, ...]
    plot          format, file, study, kind
    watch         format, study, title, seed, state (as for status), counts {state: number},
                  rungs [{epochs, done, expected (trials)}], epochs, epochs_total, env_steps, env_steps_per_second,
                  epochs_per_second, seconds_left (or null), best (null, or {value, trial, epochs}),
                  running [{trial, seed (index; null if there is one), env (null if there is one), uid, epochs, target,
                  curve [last values], worker, seconds (since it took the trial)}],
                  workers [{name, state ("trains", "silent", "died"), trials, seconds}],
                  failures [{time, trial, kind, retry, text}]; live.json of serve is the same
    serve         format, url; printed when it answers
    train         format, uid, task, env, seed, epochs, return, digest, resumed,
                  inexact [reasons why it is not bit-exact], advice [texts about the environment],
                  hyperparameters, metrics {name: number}
    create        as for tune
    tasks         format, storage, tasks [{uid, task, env, seed, epochs, return (last one, or null)}]
    probe         format, task, env, and the fields of a study's probe
    space         format, task, env (text or null), hyperparameters [{name, searched (a prior or null), default,
                  when [conditions], help (a sentence, or "")}]
    worker        format, and the study as in status when this worker ends; with several studies, storage and studies
    stop, pause, resume, cancel, exclude, enqueue, extend
                  format, study, number (among the study's commands), kind, data, who, why, created
    status        format, storage, studies [as for tune, without trials, with workers (number that train it now); state
                  is also "stalled" if nobody trains the rest],
                  workers [{host, pid, trials [{study, number}], seconds (since it took the first), lease_left (seconds
                  until others may take them, unless its heartbeat renews its lease)}], tasks (number)
    show          format, uid, task, env, seed, epochs, return, digest, owner (text or null), hyperparameters,
                  trials [{study, number, state, error (text or null)}], metrics [{epoch, name: number}],
                  inexact and advice [text], lineage [{uid, until (epochs)}] from the root to this task,
                  checkpoints [{epochs, within_epoch (whether within the next one), digest, bytes, created, kept
                  (reason)}],
                  events [{time, kind, ...}]
                  with --config also config (the run file)
    import-config format, config (the run file), without [settings without a counterpart]
    check-resume  format, exact (whether the kill changed nothing), differs (texts), outside (names of files that
                  a program wrote outside of its checkpoint folder)
    replay        format, uid, equal, epochs, digest, replayed (digest or null), reason (text or null),
                  lineage [{uid, from (epochs), to (epochs), digest}]
    schedule      format, uid, epochs, stages [{from, to (epochs), hyperparameters (those that change)}], recorded (the
                  task's result), schedule, last (its last hyperparameters throughout), gain (schedule minus last, seed
                  by seed), each {value, low, high (95%), results}, luck (recorded minus schedule)
    fork          as for train, with from (uid), at (epochs), changed {dotted name: [old, new]}, return_before

``--set:NAME VALUE`` is another spelling of ``--set NAME=VALUE`` for Orion, whose parser takes priors by the names of
options, and each name only once:

    orion hunt -n cartpole rekindle train ppo CartPole-v1 --set:optimizer.lr~'loguniform(1e-5, 1e-2)' \
        --set:epoch_steps 1024 --epochs~'fidelity(1, 27, 3)'

Under Orion, ``rekindle train`` reports its result to Orion, resumes from the checkpoint of a lower rung, and drops
hyperparameters that do not apply. It stores checkpoints in Orion's database if ORION_DB_TYPE is rekindlesql and
ORION_DB_ADDRESS names the database; a trial of Orion's PBT then starts from the final state of its parent. A trial that
SIGTERM or SIGINT stops is interrupted and retried, and so is one whose process is killed, up to a limit. A trial that
fails is broken. --warm-start gives all trials of a hunt the same initial policy. With -vv, Orion itself logs
ORION_DB_ADDRESS: keep the password in ~/.pgpass or PGPASSWORD.

``return`` is the mean undiscounted return of greedy evaluation episodes, on seeds that no training uses. ``digest`` is
the sha256 of the canonical form of the whole training state. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    from .dispatch import main as run

    return run(argv)
