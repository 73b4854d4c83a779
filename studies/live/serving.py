"""Server of read-only pages about studies, using only the standard library."""

from __future__ import annotations

import hmac
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, unquote, urlsplit

from ..engine.confirmations import confirmations_of
from ..engine.study_views import Json, summary_view
from ..errors import StoreError, StudyReplaced, UnknownStudy
from ..report.data import report_view
from ..report.drawing import escape
from ..report.markup import document, table
from ..report.page import page
from .fragments import fragment
from .views import LiveStudy, WatchView

if TYPE_CHECKING:
    from ..storage.store import Store

LOOPBACK = ("127.0.0.1", "localhost", "::1")
AT_MOST_EVERY = 0.5  # seconds between two reads of a study, for all browsers together
COOKIE = "rekindle-token"
POLL = """
const place = document.querySelector("#live");
async function look() {
  try {
    const answer = await fetch(place.dataset.from);
    if (answer.ok) place.innerHTML = await answer.text();
    place.classList.toggle("out", !answer.ok);
  } catch { place.classList.add("out"); }
  setTimeout(look, 1000);
}
setTimeout(look, 1000);
"""


class Studies:
    """Pages and views of a storage's studies, shared by all browsers."""

    def __init__(self, store: Store):
        self.store, self._lock = store, threading.Lock()
        self._live: dict[str, LiveStudy] = {}
        self._views: dict[str, tuple[float, WatchView]] = {}
        self._reports: dict[str, tuple[tuple[list[int], set[int]], str]] = {}

    def names(self) -> list[str]:
        """Return the names of all studies, oldest first."""
        return [study.name for study in self.store.studies()]

    def view(self, name: str) -> WatchView:
        """Return a view of a study, or raise UnknownStudy."""
        with self._lock:
            at, view = self._views.get(name, (0.0, None))
            if view is None or time.monotonic() - at > AT_MOST_EVERY:
                view = self._look(name)
                self._views[name] = time.monotonic(), view
            return view

    def _look(self, name: str) -> WatchView:
        """Look at a study, or at a later one of its name."""
        with suppress(StudyReplaced):
            if name in self._live:
                return self._live[name].look()
        self._live[name] = LiveStudy(self.store, name)
        self._reports.pop(name, None)
        return self._live[name].look()

    def report(self, name: str) -> str:
        """Return a study's report; it is rebuilt after a change.

        A worker that dies changes no row, so the trials in training are compared, too. A confirmation is a study of its
        own, with its own changes.
        """
        names = [name, *confirmations_of(self.store, name)]
        for study in names:
            self.view(study)
        revisions = [self._live[study].progress.rows.revision for study in names]
        now = revisions, self.store.in_training(name)
        built, html = self._reports.get(name, (None, ""))
        if built != now:
            html = page([report_view(self.store, name)])
            self._reports[name] = now, html
        return html

    def index(self) -> str:
        """Return the page of all studies."""
        rows = []
        for name in self.names():
            summary = summary_view(self.store, name)
            best = summary.best_result()
            counts = ", ".join(f"{count} {state}" for state, count in summary.counts.items() if count)
            link = f'<a href="/study?study={quote(name, safe="")}">{escape(name)}</a>'
            rows.append((link, escape(summary.state), escape(counts), "" if best is None else f"{best:.4g}"))
        content = table(("study", "state", "trials", "best"), rows, "---n") if rows else "<p>No study yet.</p>"
        return document("Studies", f"<h1>Studies</h1><p class='soft'>{escape(self.store.url)}</p>{content}")

    def study(self, name: str) -> str:
        """Return the page of a study, which refreshes itself."""
        view, query = self.view(name), f"study={quote(name, safe='')}"
        body = [
            f"<nav><a href='/'>all studies</a> · <a href='/report?{query}'>report</a></nav><h1>{escape(name)}</h1>",
            f"<p class='soft'>{escape(view.title)}, seed {view.seed}</p>",
            f'<div id="live" data-from="/live?{query}">{fragment(view)}</div>',
        ]
        return document(name, "".join(body), POLL, "<noscript><meta http-equiv='refresh' content='5'></noscript>")

    def json(self, name: str) -> Json:
        """Return the object that `rekindle watch --json` prints."""
        return {"format": 1, **self.view(name).to_json()}


class Server(ThreadingHTTPServer):
    """A server of a storage's studies.

    Args:
        store: store of the studies; it may be read-only.
        host: address to listen on; any but loopback needs a token.
        port: port to listen on; 0 for any free port.
        token: secret that a browser must pass once as ?token=; "" for none.

    Raises:
        ValueError: the address needs a token, or is not available.
    """

    daemon_threads = True

    def __init__(self, store: Store, host: str = LOOPBACK[0], port: int = 0, token: str = ""):
        if host not in LOOPBACK and not token:
            raise ValueError(
                f"a server that other machines reach needs a token, but --host is {host} without --token; give one, or "
                "reach 127.0.0.1 through ssh -L"
            )
        self.studies, self.token = Studies(store), token
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"a server needs a free address, but {host}:{port} is not: {why}; try another") from None

    def handle_error(self, request: object, client_address: object) -> None:
        """Print an error, unless a browser was closed before its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """Address for browsers, including the token."""
        address, port = self.server_address[:2]
        host = f"[{address!s}]" if ":" in str(address) else f"{address!s}"
        return f"http://{host}:{port}/" + (f"?token={quote(self.token, safe='')}" if self.token else "")


class Handler(BaseHTTPRequestHandler):
    """Handler of one request, GET only."""

    server: Server
    server_version, sys_version = "rekindle", ""

    def do_GET(self) -> None:
        """Answer with a page, a fragment or JSON."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if not self._may(query):
            self._send(
                403, "text/plain", "The token is missing or wrong: open the address that rekindle serve printed."
            )
            return
        studies = self.server.studies
        name = query.get("study", [""])[0]
        answers: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("text/html", studies.index),
            "/study": ("text/html", lambda: studies.study(name)),
            "/live": ("text/html", lambda: fragment(studies.view(name))),
            "/live.json": ("application/json", lambda: json.dumps(studies.json(name))),
            "/report": ("text/html", lambda: studies.report(name)),
        }
        media_type, answer = answers.get(parts.path, ("text/plain", lambda: ""))
        try:
            text = answer()
        except UnknownStudy as error:
            self._send(404, "text/plain", str(error))
        except StoreError as error:
            self._send(503, "text/plain", str(error))
        else:
            self._send(200 if parts.path in answers else 404, media_type, text)

    def _may(self, query: dict[str, list[str]]) -> bool:
        """Return whether the sender may read.

        Without a token, the Host header must name loopback. Otherwise a foreign page could make its own host name
        resolve to this machine (DNS rebinding).
        """
        if not self.server.token:
            hostname = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            return hostname in LOOPBACK
        cookies = SimpleCookie(self.headers.get("Cookie", ""))
        tokens = [*query.get("token", []), *([unquote(cookies[COOKIE].value)] if COOKIE in cookies else [])]
        return any(hmac.compare_digest(text.encode(), self.server.token.encode()) for text in tokens)

    def _send(self, status: int, media_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{media_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if self.server.token and status != 403:
            cookie = quote(self.server.token, safe="")
            self.send_header("Set-Cookie", f"{COOKIE}={cookie}; HttpOnly; SameSite=Strict; Path=/")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Do not log requests."""
