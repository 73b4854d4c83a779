"""Removal of passwords and terminal control sequences from texts."""

from __future__ import annotations

import re

from ..tasks.runtime.secrets import without_secrets

_IN_URL = re.compile(r"(//[^:/@\s]*):\S*@")  # up to the last @ of the word: a password may contain an unescaped one
_NAMED = re.compile(
    r"""(?i)((?:password|passfile|passwd)["']?\s*[=:]\s*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^&\s,;)'"]+)"""
)


def masked(text: str) -> str:
    """Replace passwords and secrets of the environment by ***."""
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1:***@", without_secrets(text)))


def masked_url(text: str) -> str:
    """Replace passwords in a URL, well-formed or not, by ***."""
    before, at, after = text.rpartition("@")
    scheme, slashes, rest = before.partition("://") if "://" in before else ("", "", before)
    user, colon, _ = rest.partition(":")
    if at and colon:
        text = f"{scheme}{slashes}{user}:***@{after}"
    return re.sub(r"(?i)((?:password|passfile|passwd)=)[^&]*", r"\1***", text)


def printable(text: str) -> str:
    """Escape unprintable characters, such as terminal control sequences, in an untrusted text."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
