"""``rekindle export-curves``: copies of curves for other tools."""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated

from ...curves.copying import Copy
from ...curves.runs import Curves
from ...curves.sinks import opened, parse
from ...engine.optuna_mirror import Mirror
from ...engine.views import View
from ..output.terminal import new_console, note, print_json
from .storage import existing_store

OPTUNA = "optuna"  # target for the copy in Optuna's tables, which are in the storage itself
POLL = (2.0, 8.0)  # shortest and longest pause in seconds between two reads
SHARE = 0.1  # fraction of the time for copying, within POLL; Optuna takes a second even for a small study


class CopyView(View):
    """A copy of curves."""

    to: Annotated[str, "target"]
    runs: Annotated[int, "number of runs"]
    points: Annotated[int, "number of points written by this command"]


class CopiesView(View):
    """Copies of the curves of a study or task."""

    name: Annotated[str, "its name or uid"]
    copies: Annotated[Sequence[CopyView], "copies"]


def export_curves(arguments: argparse.Namespace) -> int:
    """Copy the curves of a study or a task."""
    targets = [parse(text, arguments.names) for text in arguments.to if text != OPTUNA]
    say = partial(note, new_console(stderr=True))
    over = _parent_ended() if arguments.with_parent else threading.Event()
    with existing_store(arguments) as store, ExitStack() as sinks:
        reader = Curves(store, arguments.name)
        copies = [Copy(reader.again(), sinks.enter_context(opened(*target, say))) for target in targets]
        updates: list[Callable[[], object]] = [copy.update for copy in copies]
        if OPTUNA in arguments.to:
            updates.append(sinks.enter_context(Mirror(store, arguments.name)).update)
        while True:
            start = time.monotonic()
            last = not arguments.follow or over.is_set() or (not arguments.with_parent and reader.complete)
            for update in updates:
                update()
            if last:
                break
            over.wait(min(max(POLL[0], (time.monotonic() - start) / SHARE), POLL[1]))
            reader.refresh()
    written = [
        CopyView(to=text, runs=len(copy.runs), points=copy.points)
        for text, copy in zip([text for text in arguments.to if text != OPTUNA], copies, strict=True)
    ]
    if arguments.json:
        return print_json(CopiesView(name=arguments.name, copies=written))
    for curve in written:
        note(new_console(), f"{curve.to}: {curve.points} new epochs of {curve.runs} runs")
    return 0


def _parent_ended() -> threading.Event:
    """Return an event that is set once stdin ends."""
    ended = threading.Event()

    def read() -> None:
        while os.read(0, 4096):
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    return ended
