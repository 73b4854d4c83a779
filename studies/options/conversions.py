"""Conversions of words of the command line, for argparse."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .durations import parse_duration

MOST = 10_000_000  # largest count, which limits the work that an option or a file can cause
MOST_PROCESSES = 1000


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or not text.strip("0"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, but got {text!r}")
    return bounded(text)


def bounded(text: str, most: int = MOST) -> int:
    """Parse an integer of at most `most`."""
    if len(text.lstrip("0")) > len(str(most)) or int(text) > most:  # int() of very many digits is an error
        raise argparse.ArgumentTypeError(f"must be {most} at most, but got {text[:40]}")
    return int(text)


def few(text: str) -> int:
    """Parse a number of processes."""
    return bounded(str(positive(text)), MOST_PROCESSES)


def nonnegative(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, but got {text!r}")
    return bounded(text, MOST_PROCESSES)


def port(text: str) -> int:
    """Parse a port number."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, but got {text!r}")
    return bounded(text, 65535)


def amount(text: str) -> float:
    """Parse a number above 0."""
    value = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if not 0 < value <= MOST:
        raise argparse.ArgumentTypeError(
            f"must be a number above 0, such as 1 or 0.5, and {MOST} at most, but got {text[:40]!r}"
        )
    return value


def seed(text: str) -> int:
    """Parse a seed."""
    if not text.isdecimal() or len(text) > 19 or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**63 - 1, but got {text[:40]!r}")
    return int(text)


def output(text: str) -> Path:
    """Return the whole path of a file to be written.

    An environment may change the working directory before.
    """
    return Path(text).absolute()


def seconds(text: str) -> float:
    """Parse seconds, in the range of all clocks and waits."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"must be seconds, a number from 0 to {MOST}, but got {text[:40]!r}")
    return value


def duration(text: str) -> float | None:
    """Parse a duration; a number is in seconds, and "off" is None."""
    if text == "off":
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).replace(", but", ", or off, but", 1)) from None


def device(text: str) -> str:
    """Check the form of a device's name.

    Torch, which is slow to import, checks later that the device exists.
    """
    name, colon, index = text.partition(":")
    if name not in ("auto", "cpu", "cuda", "mps") or (colon and (name != "cuda" or not index.isdecimal())):
        raise argparse.ArgumentTypeError(
            f"must be auto, cpu, cuda, cuda:1 (or another number) or mps, but got {text!r}"
        )
    return text


def retention(text: str) -> str:
    """Check the value of --snapshots."""
    from ...tasks.checkpoint.retention import keep_of  # imports numpy

    try:
        keep_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


TYPES: dict[str, Callable[[str], Any]] = {
    "N": positive,
    "SECONDS": seconds,
    "EPOCH": positive,
    "DURATION": duration,
    "MODE": retention,
    "DEVICE": device,
}  # types of values, by placeholder
