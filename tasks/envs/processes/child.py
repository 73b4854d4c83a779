"""An environment process: it steps its share of a batch of environments, and ends when its parent does."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from ..base import Array
from ..gym.stage import Here, Shown
from ..spec import EnvSpec, EnvSpecError
from .wire import DONE, STEP, arrays_in, receive, send


def main(channel: int, memory: int) -> None:
    """Serves until the parent closes the channel; the arguments are descriptors that were inherited from it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # those mean the parent, which decides when this process is to stop
    connection = Connection(channel)
    with suppress(EOFError, ConnectionError):
        _serve(connection, memory)
    os._exit(0)  # at once: nothing here outlives the parent's interest


def _serve(channel: Connection, memory: int) -> None:
    hello, _ = receive(channel)
    try:
        server = _Server(hello, memory)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
        send(channel, {"error": _text(error), "spec": isinstance(error, EnvSpecError), "trace": _trace(error)})
        return
    send(channel, {})
    while True:
        request = channel.recv_bytes()
        try:
            if request == STEP:
                server.step()
                channel.send_bytes(DONE)
                continue
            send(channel, *server.answer(*receive(channel, request)))
        except (EOFError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - an environment may raise anything
            send(channel, {"error": _text(error), "spec": False, "trace": _trace(error)})


class _Server:
    """A stage, and its rows of the shared memory."""

    def __init__(self, hello: dict[str, Any], memory: int) -> None:
        rows = slice(hello["first"], hello["first"] + hello["count"])
        every = {name: array[rows] for name, array in arrays_in(memory, hello["layout"]).items()}
        self.actions = every["actions"]
        self.shown = Shown(every["obs"], every["reward"], every["terminated"], every["truncated"])
        self.stage = Here(EnvSpec.from_json(hello["spec"]), hello["count"])

    def step(self) -> None:
        self.shown.obs[...] = 0
        self.stage.step_into(self.actions.copy(), self.shown)  # an environment may keep its action

    def answer(self, request: dict[str, Any], arrays: list[Array]) -> tuple[dict[str, Any], list[Array]]:
        kind, places = request["kind"], request["places"]
        if kind == "begin":
            return {}, [self.stage.begin(places, request["seeds"], request["options"], request["fresh"])]
        if kind == "replay":
            seen = self.stage.replay(places, arrays)
            return {"moved": [obs is not None for obs in seen]}, [obs for obs in seen if obs is not None]
        if kind == "take":
            return {}, self.stage.take(places)
        assert kind == "put", kind
        self.stage.put(places, arrays, request["elapsed"])
        return {}, []


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, EnvSpecError) else f"{type(error).__name__}: {error}"


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
