"""Commands that messages print, quoted so that copies of them work."""

from __future__ import annotations

import shlex


def command_line(command: str, study: str, *options: str) -> str:
    """Return a command on a study, with options that are quoted already."""
    word = quoted(study)
    words = [*options, "--", word] if study.startswith("-") else [word, *options]
    return " ".join(["rekindle", command, *words])


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
