"""``rekindle watch``: a live view of a study in a terminal."""

from __future__ import annotations

import argparse
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from rich.live import Live

from ...errors import UnknownStudy
from ...live.views import LiveStudy, WatchView
from ...storage.store import Store
from ..output.live_progress import Progress
from ..output.terminal import new_console, note, print_json
from ..output.watching import picture
from .storage import existing_store

QUIT = b"q"


def watch(arguments: argparse.Namespace) -> int:
    """Show a study live until q or Ctrl-C."""
    with existing_store(arguments) as store:
        name = arguments.study or youngest(store)
        study = LiveStudy(store, name)
        if arguments.json:
            return print_json(study.look())
        out = new_console()
        progress = Progress(out, name, store.url)
        progress.clock = "watched"
        if not out.is_terminal:
            out.print(picture(progress, study.look(), study.snapshot))
            return 0
        view = _follow(study, progress, arguments.every)
        note(out, f"{name}: {view.state}; {progress.line(study.snapshot)}")
    return 0


def youngest(store: Store) -> str:
    """Return the name of the newest study.

    Raises:
        UnknownStudy: the storage has no study.
    """
    studies = store.studies()
    if not studies:
        raise UnknownStudy(f"there is no study in {store.url} yet; `rekindle tune` makes one")
    return studies[-1].name


def _follow(study: LiveStudy, progress: Progress, every: float) -> WatchView:
    """Show the study until q or Ctrl-C; return the last view."""
    progress.speed = study.speed
    view = study.look()
    with _keys() as ended, Live(console=progress.console, screen=True, auto_refresh=False) as live:
        try:
            live.update(picture(progress, view, study.snapshot), refresh=True)
            while not ended(every):
                view = study.look()
                live.update(picture(progress, view, study.snapshot), refresh=True)
        except KeyboardInterrupt:
            pass
    return view


class _Keys:
    """A wait that the key q ends, if there is a terminal."""

    def __init__(self, terminal: bool):
        self.terminal = terminal

    def __call__(self, seconds: float) -> bool:
        if not self.terminal:
            time.sleep(seconds)
            return False
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        pressed = os.read(sys.stdin.fileno(), 1024) if ready else None
        return pressed is not None and (QUIT in pressed or not pressed)


@contextmanager
def _keys() -> Iterator[_Keys]:
    """Read keys without waiting for Enter."""
    if not sys.stdin.isatty():
        yield _Keys(False)
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin, termios.TCSANOW)  # keeps keys that were typed before
        yield _Keys(True)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
