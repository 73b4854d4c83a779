"""``rekindle serve``: read-only pages of studies and their reports."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import Annotated

from ...engine.views import View
from ...live.serving import Server
from ..output.terminal import new_console, note, print_json
from .storage import existing_store


class AddressView(View):
    """Address of a server, printed when it answers."""

    url: Annotated[str, "address, with the token"]


def serve(arguments: argparse.Namespace) -> int:
    """Serve pages until Ctrl-C."""
    out = new_console()
    with existing_store(arguments) as store, Server(store, arguments.host, arguments.port, arguments.token) as server:
        if arguments.json:
            print_json(AddressView(url=server.url))
            sys.stdout.flush()
        else:
            note(out, f"{store.url}: {server.url} (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    if not arguments.json:
        note(out, "the server has stopped; no study was changed")
    return 0
