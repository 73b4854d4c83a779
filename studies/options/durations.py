"""Durations as text, such as 90s or 2h."""

from __future__ import annotations

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST = 1e6  # largest number of any unit


def parse_duration(text: str) -> float:
    """Parse a duration such as 90s, 10m or 2h as seconds.

    A number without a unit is in seconds.

    Raises:
        ValueError: the text is not a duration.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    value = float(number) if number.isascii() and number.replace(".", "", 1).isdecimal() else 0.0
    if not 0.0 < value < LONGEST:
        raise ValueError(f"must be a duration, such as 90s, 10m, 2h or 1d, but got {text!r}")
    return value * UNITS[unit]


def seconds_of(name: str, duration: float | str | None) -> float | None:
    """Return the seconds of a duration; None for None and "off".

    Args:
        name: name of the option or argument, for errors.
        duration: seconds, or text that `parse_duration` accepts.
    """
    if duration is None or duration == "off":
        return None
    try:
        return parse_duration(duration if isinstance(duration, str) else f"{duration:f}")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} {error}") from None


def in_words(seconds: float) -> str:
    """Return a duration in its largest unit, such as 1.5h."""
    unit = next((unit for unit in reversed(UNITS) if seconds >= UNITS[unit]), "s")
    return f"{seconds / UNITS[unit]:.3g}{unit}"
