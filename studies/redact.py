"""Texts without the passwords that they might hold, and without what a terminal would obey."""

from __future__ import annotations

import re

_IN_URL = re.compile(r"(//[^:/@\s]*):\S*@")  # up to the last @ of the word: a password may hold one, unescaped
_NAMED = re.compile(
    r"""(?i)((?:password|passfile|passwd)["']?\s*[=:]\s*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^&\s,;)'"]+)"""
)


def masked(text: str) -> str:
    """A text with *** for the passwords of the URLs and connection strings in it."""
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1:***@", text))


def masked_url(text: str) -> str:
    """What was given for a URL, spelled right or not, with *** for all that may be a password."""
    before, at, after = text.rpartition("@")
    scheme, slashes, rest = before.partition("://") if "://" in before else ("", "", before)
    user, colon, _ = rest.partition(":")
    if at and colon:
        text = f"{scheme}{slashes}{user}:***@{after}"
    return re.sub(r"(?i)((?:password|passfile|passwd)=)[^&]*", r"\1***", text)


def printable(text: str) -> str:
    """A text that somebody else may have written, with what is no character (a terminal's commands) spelled out."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )
