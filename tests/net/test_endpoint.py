"""Limits of the bytes that wait for a peer that does not read, with real sockets and both event loops."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from mqbridge.errors import PeerSilent
from mqbridge.net.endpoint import MAX_UNREAD_REPLY_BYTES, WRITE_HIGH_BYTES, Endpoint
from tests.patience import PATIENCE_S

uvloop = pytest.importorskip("uvloop")
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
PIECE = bytes(50_000)


async def connect(listener: socket.socket) -> tuple[Endpoint, socket.socket, "asyncio.Future[Exception]"]:
    """Return a connected endpoint, the peer's socket, which nobody reads, and a future of its last error."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[Exception] = loop.create_future()
    endpoint = Endpoint(lambda *_: 1, lambda _: None, lost.set_result)
    await loop.create_connection(lambda: endpoint, *listener.getsockname())
    return endpoint, listener.accept()[0], lost


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], test: Callable[[socket.socket], "asyncio.Future[None]"]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(test(listener), PATIENCE_S))


@LOOPS
def test_any_number_of_waiting_senders_queue_little(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test(listener: socket.socket) -> None:
        endpoint, peer, lost = await connect(listener)
        most = 0

        async def send() -> None:
            nonlocal most
            await endpoint.wait_for_room()
            endpoint.send(PIECE)
            most = max(most, endpoint.queued_bytes)

        sends = [asyncio.ensure_future(send()) for _ in range(1000)]  # 50 MB
        while endpoint.is_writable:  # the kernel's buffers fill
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not all(each.done() for each in sends)
        received = 0
        while received < 1000 * len(PIECE):
            received += len(await asyncio.to_thread(peer.recv, 1 << 20))
        await asyncio.gather(*sends)
        assert WRITE_HIGH_BYTES < most <= WRITE_HIGH_BYTES + len(PIECE)
        endpoint.abort(ConnectionError())
        await lost
        peer.close()

    run(new_loop, test)  # type: ignore[arg-type]


@LOOPS
def test_a_peer_that_reads_no_response_loses_its_connection(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def test(listener: socket.socket) -> None:
        endpoint, peer, lost = await connect(listener)
        sent = 0
        while not lost.done():
            if endpoint.alive:
                endpoint.reply(PIECE)
                sent += len(PIECE)
            await asyncio.sleep(0)
        assert isinstance(error := lost.result(), PeerSilent)
        assert "reads no response" in str(error)
        assert sent > WRITE_HIGH_BYTES + MAX_UNREAD_REPLY_BYTES
        peer.close()

    run(new_loop, test)  # type: ignore[arg-type]
