"""Reports of a program to the Rekindle that trains it.

    for epoch in range(start, epochs + 1):
        ...  # train, and write the checkpoint
        rekindle.report(epoch, accuracy=accuracy)

This module needs nothing but Python's standard library, so a program in another environment may copy the file. Rekindle
names a socket in the environment variable REKINDLE_REPORT; without it, a report does nothing.

A report returns when Rekindle has copied the checkpoint folder. So write the checkpoint first: a program that is killed
later resumes from there.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

VARIABLE = "REKINDLE_REPORT"  # environment variable with the path of the socket
PROCEED = b"proceed\n"  # answer to a program that may go on training


def report(epoch: int, **metrics: Any) -> None:
    """Report the metrics of an epoch whose checkpoint is written.

    Args:
        epoch: epochs that are done, counted from the beginning of the training, 1 or more.
        metrics: numbers by name; an underscore at the end of a name is dropped, as in ``return_=12.5``.

    Raises:
        TypeError: the epoch is no integer, or a metric is no number.
        SystemExit: the training is to end here.
    """
    numbers = {name.removesuffix("_"): _number(name, value) for name, value in metrics.items()}
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__"):
        raise TypeError(f"report: epoch must be an integer, the epochs done so far, but got {epoch!r}")
    path = os.environ.get(VARIABLE)
    if not path:
        return
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"epoch": epoch.__index__(), "metrics": numbers}).encode() + b"\n")
            answer = connection.makefile("rb").readline()
        except ConnectionError:
            answer = b""
    if answer != PROCEED:
        raise SystemExit(0)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"report: {name} must be a number, but is {value!r}") from None
