"""A Broker over real sockets, behind a link of limited bandwidth."""

import asyncio
import socket
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from mqbridge.errors import ConnectionLost
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.frame import FrameMeter, encode_frame, split_frame
from mqbridge.tubemq.wire.pb import broker_pb2 as b

OK = {"success": True, "errCode": 200, "errMsg": "OK"}
CHUNK = 4096


def small_socket() -> socket.socket:
    """Return a bound socket with a small receive buffer; otherwise the kernel would hold megabytes of unread data."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * CHUNK)
    sock.bind(("127.0.0.1", 0))
    return sock


class StoringBroker:
    """A Broker that stores messages and delivers packs of `pack_bytes`; it responds in the order of the requests."""

    def __init__(self, pack_bytes: int = 0) -> None:
        self.stored: Counter[bytes] = Counter()
        self.counts: Counter[int] = Counter()
        self.port = 0
        self._pack = [b.TransferedMessage(messageId=1, checkSum=0, payLoadData=bytes(pack_bytes), flag=0)]
        self._connections: list[Endpoint] = []

    async def open(self, stack: AsyncExitStack) -> None:
        server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        stack.callback(server.close)
        stack.callback(lambda: [one.abort(ConnectionLost("closed by the test")) for one in self._connections])

    def _accept(self) -> Endpoint:
        def on_frames(frames: list[bytes]) -> None:
            for serial, payload in map(split_frame, frames):
                request = rpc.decode_request(payload)
                self.counts[request.method] += 1
                answer = self.answer(request.method, request.body).SerializeToString()
                if endpoint.alive:
                    endpoint.send(encode_frame(serial, rpc.encode_response(request.method, answer)))

        endpoint = Endpoint(FrameMeter().measure, on_frames, lambda _: None)
        self._connections.append(endpoint)
        return endpoint

    def answer(self, method: int, body: bytes) -> Any:
        if method == rpc.SEND:
            self.stored[b.SendMessageRequestP2B.FromString(body).data[:8]] += 1
            return b.SendMessageResponseB2P(**OK, messageId=1, appendTime=1, appendOffset=0)
        if method == rpc.GET:
            return b.GetMessageResponseB2C(**OK, messages=self._pack, currOffset=0, maxOffset=10**6, currDataDlt=0)
        if method == rpc.PARTITION_HEARTBEAT:
            return b.HeartBeatResponseB2C(**OK)
        if method == rpc.COMMIT:
            return b.CommitOffsetResponseB2C(**OK, currOffset=0)
        return b.RegisterResponseB2C(**OK, currOffset=0, maxOffset=10**6)


class SlowLink:
    """A proxy that forwards at most `bytes_per_s` in each direction of a connection."""

    def __init__(self, target: int, bytes_per_s: int) -> None:
        self.port = 0
        self._target, self._rate = target, bytes_per_s
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, stack: AsyncExitStack) -> None:
        server = await asyncio.start_server(self._accept, sock=small_socket(), limit=CHUNK)
        self.port = server.sockets[0].getsockname()[1]
        stack.callback(server.close)
        stack.push_async_callback(self._stop)

    async def _stop(self) -> None:
        await cancel(*self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other = small_socket()
        other.setblocking(False)
        await asyncio.get_running_loop().sock_connect(other, ("127.0.0.1", self._target))
        back, forth = await asyncio.open_connection(sock=other, limit=CHUNK)
        self._tasks += [spawn(self._pump(reader, forth), "test link up"), spawn(self._pump(back, writer), "test link down")]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                await asyncio.sleep(len(data) / self._rate)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
