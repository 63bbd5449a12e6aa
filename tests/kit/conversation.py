"""Scripted connections without sockets: the server's side of a connection, responses, and waiting for conditions."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from mqbridge.net.endpoint import Endpoint
from mqbridge.wire.cutter import FrameCutter
from tests.patience import PATIENCE_S


class ServerLink(asyncio.Transport):
    """The server's side of a connection: it receives the client's bytes as frames, and `send_bytes` responds."""

    def __init__(self, endpoint: Endpoint, measure: Callable[[Any], int], **extra: Any) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.cutter = FrameCutter(measure)
        self.extra = extra
        self.loop = asyncio.get_running_loop()
        self.open = True

    def received(self, frame: bytes) -> None:
        """Handle one frame of the client; respond in a later iteration of the event loop, as over a network."""
        raise NotImplementedError

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.extra.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        for frame in self.cutter.feed(bytes(data)):
            self.received(frame)

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def send_bytes(self, data: bytes) -> None:
        if self.open:
            self.endpoint.data_received(data)

    def close(self) -> None:
        self.drop()

    def abort(self) -> None:
        self.drop()

    def drop(self, error: Exception | None = None) -> None:
        if self.open:
            self.open = False
            self.loop.call_soon(self.endpoint.connection_lost, error)


def in_turn(*answers: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return a handler that responds to each request with the next of `answers`; the last one is repeated forever."""
    remaining = list(answers)

    def answer(link: Any, request: Any) -> None:
        chosen = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        chosen(link, request)

    return answer


def silent(link: Any, request: Any) -> None:
    """Ignore a request."""


def wait_until(condition: Callable[[], bool], patience_s: float = 60.0, pause_s: float = 0.05) -> None:
    """Wait until the condition holds, without an event loop."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {patience_s:g} s"
        time.sleep(pause_s)


async def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S, pause_s: float = 0.001) -> None:
    """Wait until `condition` is true; raise TimeoutError after `patience_s`."""
    async with asyncio.timeout(patience_s):
        while not condition():
            await asyncio.sleep(pause_s)
