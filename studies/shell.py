"""Commands that messages print, quoted so that copies of them work."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

READING = ("trials", "show", "status", "tasks", "watch")  # commands that run nobody's code, and start fast
STORAGE = "--storage"
_storage: ContextVar[Sequence[str]] = ContextVar("storage", default=())


@contextmanager
def in_storage(url: str | None) -> Iterator[None]:
    """Name a storage, if any, in all commands printed inside this context."""
    token = _storage.set([] if url is None else [option(STORAGE, url)])
    try:
        yield
    finally:
        _storage.reset(token)


def command_line(command: str, study: str, *options: str) -> str:
    """Return a command on a study, with options that are quoted already."""
    word = option("--study", study) if command == "worker" else quoted(study)
    options = options if any(option.startswith(STORAGE) for option in options) else (*options, *_storage.get())
    words = [*options, "--", word] if word.startswith("-") and word == quoted(study) else [word, *options]
    return " ".join(["rekindle", command, *words])


def begin_again(study: str, *options: str) -> str:
    """Return how to begin a study anew whose trials have all failed."""
    trials, delete = (command_line(command, study, *options) for command in ("trials", "delete"))
    return f"`{trials}` says why; once that is mended, `{delete}` and a rerun begin it anew"


def option(name: str, value: str) -> str:
    """Return an option and its value."""
    return f"{name}{'=' if value.startswith('-') else ' '}{quoted(value)}"


def quoted(word: str) -> str:
    """Quote a word for a shell, in characters that messages keep."""
    if word.isprintable() and " ".join(word.split()) == word:
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable() and letter != " ":
        return letter
    return "".join(f"\\x{byte:02x}" for byte in letter.encode(errors="surrogateescape"))
