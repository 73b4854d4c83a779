"""Results of confirmations in sentences, for reports and terminals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..engine.probes import UNLEARNED
from ..engine.views import (
    BaselineView,
    CandidateView,
    ChangesView,
    ConfirmationView,
    ConstraintView,
    EstimateView,
    FailedProbeView,
    MeanView,
    OriginView,
    ProbeView,
)
from ..options.constraints import Constraint
from ..shell import command_line
from ..statistics.estimates import ENOUGH_TO_HOLD
from ..study.number_text import counted, in_digits, in_digits_alone
from ..study.objectives import MINIMIZE, RETURN
from ..study.stored_form import MOST_SEEDS

MORE = 4  # times as many seeds halve an interval


def verdict(confirmation: ConfirmationView, probe: ProbeView | FailedProbeView | None = None) -> str:
    """Return the results of a confirmation, in sentences.

    Args:
        confirmation: complete or not.
        probe: probe of its environment, for returns of agents that have not learned; None without.
    """
    cost = confirmation.cost
    lost = f", and {counted(cost.failed, 'training')} that failed" if cost.failed else ""
    spent = f"It took {counted(cost.trainings, 'training')}, {counted(cost.epochs, 'epoch')}{lost}."
    if confirmation.state != "complete":
        text = f"The confirmation is not complete; `{_resume(confirmation)}` resumes it."
        if earlier := confirmation.earlier:
            text += f" The one before it, {earlier[-1]}, is complete; `{command_line('trials', earlier[-1])}` shows it."
        return f"{text} {spent}"
    best = confirmation.best
    if best is None or best.estimate is None:
        why = command_line("trials", confirmation.confirmation)
        return f"Nothing is confirmed, since too many trainings failed; `{why}` says why. {spent}"
    sentences = [_expectation(best, best.estimate, _scale(confirmation))]
    if probe is not None and confirmation.objective == RETURN and not confirmation.across:
        sentences += _in_vain(best.estimate, probe.baselines)
    sentences += [_feasibility(text, view, best.estimate.seeds) for text, view in (best.constraints or {}).items()]
    if failed := best.estimate.failed:
        sentences.append(f"{failed} of its fresh trainings failed and {'is' if failed == 1 else 'are'} not counted.")
    if best.claim is not None:
        sentences.append(_claimed(best.claim, best.estimate.value))
    if best.defaults:
        sentences.append(
            "The defaults won the race against the best that the search found."
            if confirmation.winner  # the first candidate is the best of the search
            else "The best that the search found are the defaults."
        )
    sentences += _superiority(confirmation)
    if any(candidate.defaults and candidate.estimate is None for candidate in confirmation.candidates):
        sentences.append("The defaults are not compared, since too many of their trainings failed.")
    if (changes := confirmation.since) is not None:
        sentences.append(_outdated(confirmation, changes))
    elif open_question := _better_than_winner(confirmation, best.estimate):
        sentences.append(open_question)
    if earlier := confirmation.earlier:
        sentences.append(f"None of its seeds was used by {' or '.join(earlier)}.")
    return " ".join([*sentences, spent])


def unfinished(confirmation: ConfirmationView) -> str:
    """Return a sentence about a confirmation that follows a complete one."""
    name, command = confirmation.confirmation, _resume(confirmation)
    return f"A further confirmation, {name}, is not complete; `{command}` resumes it."


def _feasibility(constraint: str, view: ConstraintView, seeds: int) -> str:
    """Return a sentence about a constraint of the winner."""
    [(value, low, high)] = interval_texts([view])
    measured = f"fresh seeds gave {value}, with 99% confidence between {low} and {high}"
    if view.holds is None:
        decisive = "more seeds" if seeds >= ENOUGH_TO_HOLD else f"{ENOUGH_TO_HOLD} seeds or more"
        return f"Whether it satisfies {constraint} is open: {measured}; {decisive} decide."
    return f"It {'satisfies' if view.holds else 'violates'} {constraint}: {measured}."


def _in_vain(estimate: EstimateView, baselines: Mapping[str, BaselineView]) -> list[str]:
    """Return a sentence unless the winner is surely better than each baseline."""
    if not baselines or estimate.low > (highest := max(baseline.value for baseline in baselines.values())):
        return []
    name = next(name for name, baseline in baselines.items() if baseline.value == highest)
    baseline = f"{UNLEARNED[name]}, which return {in_digits_alone(highest)}"
    if estimate.value > highest:
        return [f"Whether that is better than {baseline}, is open; more seeds decide."]
    return [f"That is {'worse' if estimate.high < highest else 'no better'} than {baseline}."]


def _claimed(claim: float, estimate: float) -> str:
    """Return a sentence about the winner's result in the search."""
    text, other = in_digits([claim, estimate])
    if text == other:
        return "The search claimed the same."
    return f"The search claimed {text}, which differs by {in_digits_alone(abs(claim - estimate))}."


def _superiority(confirmation: ConfirmationView) -> list[str]:
    """Return sentences about how often the winner beats the other estimates."""
    second = confirmation.runner_up
    others = {"the defaults": confirmation.over_defaults}
    if second is not None and not confirmation.candidates[second].defaults:  # else they are the same
        others["the runner-up"] = confirmation.over_runner_up
    sentences = []
    for name, better in others.items():
        if better is not None:
            probability = f"{better.estimate:.2f} ({better.low:.2f} to {better.high:.2f})"
            sentences.append(f"A training of it beats a training of {name} with probability {probability}.")
    return sentences


def _better_than_winner(confirmation: ConfirmationView, winner: EstimateView) -> str:
    """Return a sentence about a candidate with a better estimate, or ""."""
    sign = -1 if confirmation.direction == MINIMIZE else 1
    candidates = [c for c in confirmation.candidates if _is_feasible(c) or c is confirmation.best]
    estimated = [(c, c.estimate.value) for c in candidates if c.estimate is not None]
    best, mean = max(estimated, key=lambda pair: sign * pair[1])
    if len({*in_digits([mean, winner.value])}) == 1:  # the same, or all but a rounding error
        return ""
    verb = "were" if best.trial is None else "was"
    command = _command(confirmation, min(MORE * confirmation.seeds, MOST_SEEDS // 2))
    return (
        f"But on the fresh seeds {best.name} {verb} better, at {in_digits_alone(mean)}, so that which one "
        f"is best is open; `{command}` asks again, with more seeds."
    )


def _is_feasible(candidate: CandidateView) -> bool:
    """Return whether the means of a candidate's fresh results satisfy all constraints."""
    views = (candidate.constraints or {}).items()
    return all(Constraint.of(text).excess(view.value) <= 0 for text, view in views)


def _outdated(confirmation: ConfirmationView, later: ChangesView) -> str:
    """Return a sentence about the changes since the confirmation."""
    changes = []
    if later.excluded and confirmation.best is not None:
        changes.append(f"{confirmation.best.name} has been excluded")
    if numbers := later.best:
        text = f"trial {numbers[0]} has" if len(numbers) == 1 else f"trials {', '.join(map(str, numbers))} have"
        top = _top(confirmation)
        changes.append(f"{text} come among the best {top}" if top > 1 else f"{text} become the best")
    command = _command(confirmation)
    return f"Since then, {' and '.join(changes)}; `{command}` confirms the best ones of now, on further seeds."


def _top(confirmation: ConfirmationView) -> int:
    """Return how many configurations of its study a confirmation has."""
    return sum(candidate.trial is not None for candidate in confirmation.candidates)


def _resume(confirmation: ConfirmationView) -> str:
    """Return the command that resumes a confirmation.

    `confirm` trains as many epochs as the study has, which may have become more.
    """
    return command_line("worker", confirmation.confirmation) if confirmation.lengthened else _command(confirmation)


def _command(confirmation: ConfirmationView, seeds: int | None = None) -> str:
    """Return the command of a confirmation, or of one with other seeds."""
    numbers = [f"--top {_top(confirmation)}", f"--seeds {seeds or confirmation.seeds}"]
    if confirmation.eval_episodes is not None:
        numbers.append(f"--eval-episodes {confirmation.eval_episodes}")
    return command_line("confirm", confirmation.study, *numbers)


def _scale(confirmation: ConfirmationView) -> str:
    """Return words about the scale of all environments, or ""."""
    if not confirmation.across:
        return ""
    best = 0 if confirmation.direction == MINIMIZE else 1
    return f", on a scale where {best} is the best that the search found in each environment"


def _expectation(best: OriginView, estimate: EstimateView, scale: str) -> str:
    """Return a sentence about the winner's estimate."""
    name, [(value, low, high)] = best.name, interval_texts([estimate])
    if estimate.low < estimate.high:
        return f"Expect {value} of {name}, with 95% confidence between {low} and {high}{scale}."
    # An interval without width would claim that no further seed can differ.
    seeds = estimate.seeds
    return (
        f"Expect {value} of {name}{scale}: all {seeds} fresh seeds gave exactly this, so with 95% confidence at most "
        f"{1 - 0.05 ** (1 / seeds):.0%} of seeds give another result."
    )


def interval_texts(estimates: Iterable[MeanView | ConstraintView | None]) -> list[tuple[str, str, str]]:
    """Return mean and interval as text; "" without an estimate."""
    numbers = [
        (interval.value, interval.low, interval.high) if interval else (None, None, None) for interval in estimates
    ]
    texts = in_digits(number for row in numbers for number in row)
    return list(zip(texts[::3], texts[1::3], texts[2::3], strict=True))


def failures_of(candidate: CandidateView) -> int:
    """Return the number of seeds on which a candidate failed."""
    return candidate.race.failed + (candidate.estimate.failed if candidate.estimate else 0)
