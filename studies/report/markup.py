"""Building blocks of pages: documents, parts, figures and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

from .drawing import Chart, Parallel, escape


def document(title: str, body: str, script: str = "", head: str = "") -> str:
    """Return a whole page, which loads nothing from other hosts.

    Args:
        title: title of the page.
        body: HTML.
        script: JavaScript.
        head: further elements of the head.
    """
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'unsafe-inline'; connect-src 'self'; img-src data:\">{head}"
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body><main>{body}</main>"
        f"{f'<script>{script}</script>' if script else ''}</body></html>\n"
    )


def prose(text: str) -> str:
    """Return sentences as HTML, with commands between backticks as code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))


def part(title: str, text: str, *content: str) -> str:
    """Return a part of the page; "" if it is empty."""
    content_text = "".join(content)
    words = f"<p class='soft'>{escape(text)}</p>" if text else ""
    return f"<div><h3>{escape(title)}</h3>{words}{content_text}</div>" if content_text else ""


def figure(drawing: Chart | Parallel | None) -> str:
    return f"<figure>{drawing.svg()}</figure>" if drawing is not None else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: str = "", style: str = "") -> str:
    """Return a table.

    Args:
        heads: titles of the columns, as text.
        rows: cells of each row, as HTML.
        numbers: one character for each column: "n" for numbers, "-" for other columns.
        style: classes of the table.
    """
    kinds = [' class="n"' if letter == "n" else "" for letter in numbers.ljust(len(heads), "-")]
    head = "".join(f"<th{style}>{escape(text)}</th>" for text, style in zip(heads, kinds, strict=True))
    lines = "".join(
        "<tr>" + "".join(f"<td{style}>{cell}</td>" for cell, style in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="{style}"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    )
