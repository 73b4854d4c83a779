"""The way to restore an environment, known before it is trained."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base.spec import JOINT

DRAW = "draw all chance from self.np_random, after super().reset(seed=seed), and keep all state in self"


def generator_of(id: str) -> str:
    """Return the generator that an environment should draw from."""
    return "np.random.default_rng(seed), made in each reset" if id.startswith(JOINT) else "self.np_random"


def cure_of_chance(id: str) -> str:
    """Return the cure for episodes that their seeds do not decide."""
    return f"draw all chance from {generator_of(id)}, and keep all state in self" if id.startswith(JOINT) else DRAW


@dataclass(frozen=True)
class Restore:
    """A way to restore an environment's state.

    Attributes:
        mode: "snapshot", "replay" or "restart".
        exact: whether it is exact, bit for bit.
        reason: explanation for people.
        renew: whether every episode needs a new environment object, since a used one keeps a trace of its past.
        unreported: names of numbers in `info` that the spec does not name.
        cure: what to do if it is not exact.
        advice: what else users should know, each with what to do about it.
        generators: global generators that each environment gets to itself, see `chance`.
        single_instance: whether only one environment can exist at a time.
        played: digest of the episodes that new environments played, the same in every process; "" if it is not exact.
        elsewhere: why other processes play other episodes; "" if they do not, or were not asked.
        ages: "process" if playing changes what modules and classes keep, so that the age of a process may have an
            effect; "instance" if a reset leaves something of earlier episodes in an environment; "" otherwise.
    """

    mode: str
    exact: bool
    reason: str
    renew: bool = False
    unreported: tuple[str, ...] = ()
    cure: str = DRAW
    advice: tuple[str, ...] = ()
    generators: tuple[str, ...] = ()
    single_instance: bool = False
    played: str = field(default="", compare=False)
    elsewhere: str = ""
    ages: str = ""
