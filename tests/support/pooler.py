"""A pooler of PostgreSQL in transaction mode, as pgbouncer is by default: python pooler.py SOCKET PORT-FILE SIZE.

Each transaction of a client runs on whichever server process is free, the one least recently used. Prepared statements
and settings of one transaction are therefore seldom there in the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from pathlib import Path
from typing import NamedTuple, TypeAlias

PROTOCOL, SSL, GSS, CANCEL = 196608, 80877103, 80877104, 80877102


Incoming: TypeAlias = "asyncio.Future[tuple[bytes, bytes]]"


class Server(NamedTuple):
    """A connection to the server, and its greeting."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeting: bytes


def message(code: bytes, body: bytes) -> bytes:
    return code + struct.pack("!i", len(body) + 4) + body


async def read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)


async def connect(socket: str, user: str, database: str) -> Server:
    reader, writer = await asyncio.open_unix_connection(socket)
    words = ("user", user, "database", database, "client_encoding", "UTF8", "")
    body = struct.pack("!i", PROTOCOL) + b"".join(word.encode() + b"\0" for word in words)
    writer.write(struct.pack("!i", len(body) + 4) + body)
    greeting = b""
    while True:
        code, body = await read(reader)
        if code == b"E":
            raise ConnectionError(body)
        if code == b"S":
            greeting += message(code, body)
        if code == b"Z":
            return Server(reader, writer, greeting)


class Pooler:
    """A listening pooler with `size` connections to each database."""

    def __init__(self, socket: str, size: int):
        self.socket, self.size = socket, size
        self.pools: dict[tuple[str, str], asyncio.Queue[Server]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it leaves."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                length, code = struct.unpack("!ii", await reader.readexactly(8))
                body = await reader.readexactly(length - 8)
                if code == CANCEL:
                    return
                if code not in (SSL, GSS):
                    break
                writer.write(b"N")
            words = body.decode().rstrip("\0").split("\0")
            names = dict(zip(words[::2], words[1::2], strict=True))
            key = names["user"], names.get("database", names["user"])
            if key not in self.pools:
                self.pools[key] = asyncio.Queue()
                for _ in range(self.size):
                    self.pools[key].put_nowait(await connect(self.socket, *key))
            server = await self.pools[key].get()
            self.pools[key].put_nowait(server)
            writer.write(message(b"R", bytes(4)) + server.greeting + message(b"Z", b"I"))
            incoming = asyncio.ensure_future(read(reader))
            try:
                while (await incoming)[0] != b"X":
                    incoming = await self.transaction(key, incoming, reader, writer)
            finally:
                incoming.cancel()

    async def transaction(
        self, key: tuple[str, str], incoming: Incoming, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Incoming:
        """Run one transaction on a connection of the pool; return the client's next message."""
        server = await self.pools[key].get()
        outgoing = asyncio.ensure_future(read(server.reader))
        requests, sound = 0, False
        try:
            while True:
                if incoming.done():
                    code, body = incoming.result()
                    if code == b"X":
                        raise ConnectionResetError
                    server.writer.write(message(code, body))
                    requests += code in b"SQ"
                    incoming = asyncio.ensure_future(read(reader))
                await asyncio.wait({incoming, outgoing}, return_when=asyncio.FIRST_COMPLETED)
                if outgoing.done():
                    code, body = outgoing.result()
                    writer.write(message(code, body))
                    outgoing = asyncio.ensure_future(read(server.reader))
                    requests -= code == b"Z"
                    if code == b"Z" and requests == 0 and body == b"I" and not incoming.done():
                        sound = True
                        return incoming
        finally:
            outgoing.cancel()
            if not sound:  # the client left within a transaction, which the server then rolls back
                server.writer.close()
                server = await connect(self.socket, *key)
            self.pools[key].put_nowait(server)


async def main(socket: str, port_file: str, size: int) -> None:
    pooler = Pooler(socket, size)
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    Path(port_file).write_text(str(server.sockets[0].getsockname()[1]))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
