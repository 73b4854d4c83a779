"""An environment process: it steps its share, and ends with its parent."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any

from ...errors import class_and_text, text_of
from ...runtime.progress import tell_in
from ...runtime.watcher import not_ignoring
from ..base.envs import Array
from ..base.failures import endless
from ..base.spec import EnvSpec, EnvSpecError
from ..gym.backend import FlatStep, InProcess, Outcome
from .agreement import TICKS, play, tested
from .wire import DONE, STEP, Answer, arrays_in, receive, send


def main(channel: int, memory: int) -> None:
    """Serve until the parent closes the channel.

    Args:
        channel: inherited descriptor of the channel.
        memory: inherited descriptor of the shared memory.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, not_ignoring)  # the parent decides when this process stops
    with suppress(EOFError, ConnectionError), ExitStack() as stack:
        _serve(Connection(channel), memory, stack)
    os._exit(0)  # exit at once, without any cleanup: nothing here is needed any more


def _serve(channel: Connection, memory: int, stack: ExitStack) -> None:
    """Make the environments, and answer requests.

    Args:
        channel: channel to the parent.
        memory: descriptor of the shared memory.
        stack: closes the environments.
    """
    hello, _ = receive(channel)
    try:
        if "tests" in hello:
            tell_in(arrays_in(memory, TICKS)["ticks"])
            endless.update(hello["endless"])  # each of these would take a minute to close
            send(channel, {"played": tested(EnvSpec.from_json(hello["spec"])).played})
            return
        server = _Server(hello, memory)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
        send(channel, _report(error))
        return
    stack.callback(server.backend.close)
    send(channel, {"played": play(server.backend, server.backend.spec) if hello["plays"] else ""})
    while True:
        request = channel.recv_bytes()
        answer: Answer | None = None  # a step has none
        try:
            if request == STEP:
                server.step()
            else:
                answer = server.answer(*receive(channel, request))
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - an environment may raise anything
            answer = _report(error), []
        if answer is None:
            channel.send_bytes(DONE)
        else:
            send(channel, *answer)


class _Server:
    """A backend, and its rows of the shared memory."""

    def __init__(self, hello: dict[str, Any], memory: int) -> None:
        rows = slice(hello["first"], hello["first"] + hello["count"])
        arrays = {name: array[rows] for name, array in arrays_in(memory, hello["layout"]).items()}
        self.actions, self.playing = arrays["actions"], arrays["playing"]
        self.result = FlatStep(*(arrays[name] for name in FlatStep._fields))
        tell_in(arrays["ticks"])
        self.backend = InProcess(EnvSpec.from_json(hello["spec"]), hello["count"], hello["generators"])

    def step(self) -> None:
        self.result.obs[...] = 0
        self.backend.step_into(self.actions, self.playing, self.result)

    def answer(self, request: dict[str, Any], arrays: list[Array]) -> Answer:
        request_kind, indices = request["kind"], request["indices"]
        if request_kind == "begin":
            return {}, [self.backend.begin(indices, request["seeds"], request["options"], request["fresh"])]
        if request_kind == "replay":
            return _told(self.backend.replay(indices, arrays))
        if request_kind in ("play_again", "draws"):
            episode = indices[0], request["seed"], request["options"], arrays[0], request["fresh"]
            if request_kind == "draws":
                return {"draws": self.backend.draws(*episode)}, []
            return _told([self.backend.play_again(*episode)])
        if request_kind == "marks":
            return {"marks": self.backend.marks()}, []
        if request_kind == "take":
            return {}, self.backend.take(indices)
        assert request_kind == "put", request_kind
        self.backend.put(indices, arrays, request["elapsed"])
        return {}, []


def _told(outcomes: list[Outcome]) -> tuple[dict[str, Any], list[Array]]:
    """Return outcomes in the form that the parent's `_outcomes` reads."""
    obs, totals, steps = zip(*outcomes, strict=True)
    return {"totals": totals, "steps": steps}, [*obs]


def _report(error: BaseException) -> dict[str, Any]:
    """Return an exception in the form that the parent's `_receive` reads."""
    of_spec = isinstance(error, EnvSpecError)
    text = text_of(error) if of_spec else class_and_text(error)
    return {"error": text, "spec": of_spec, "trace": "".join(traceback.format_exception(error))}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
