"""Seeds of evaluation episodes, and random numbers that only evaluation draws."""

from __future__ import annotations

from collections.abc import Sequence

from ..rng import streams
from ..runtime import EVALUATION_SEED

Seeds = int | Sequence[int]  # of evaluation episodes: one for all members, or one for each


def evaluation_keys(members: int, purpose: str, seed: Seeds = EVALUATION_SEED) -> streams.Bits:
    """Return the keys (P,) of a random stream that only evaluation uses.

    Members with one seed get the same key, so they are measured on the same episodes.
    """
    return streams.keys(by_member(seed, members), "evaluation", purpose)


def by_member(seed: Seeds, members: int, players: int = 1) -> list[int]:
    """Return the seed of each member's players, (P * players,)."""
    of_members = [seed] * members if isinstance(seed, int) else seed
    return [of_member for of_member in of_members for _ in range(players)]
