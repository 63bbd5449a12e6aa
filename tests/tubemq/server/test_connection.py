"""Connections: requests that cannot be read, those of other clients than Java's, and what ends a connection."""

import asyncio
import struct

import pytest

from mqbridge.tubemq.server import connection
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.frame import encode_frame, split_frame
from mqbridge.tubemq.wire.pb import master_pb2
from mqbridge.tubemq.wire.pb.rpc_pb2 import ResponseHeader, RspExceptionBody
from tests.patience import PATIENCE_S
from tests.tubemq.server.serving import TubeMQServing, serving


class RawFrames:
    """A connection that sends and receives frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, served: TubeMQServing) -> "RawFrames":
        return cls(*await asyncio.open_connection("127.0.0.1", served.listener.port.port))

    async def ask(self, payload: bytes) -> bytes:
        """Send a payload, and return that of the response."""
        self.writer.write(encode_frame(5, payload))
        async with asyncio.timeout(PATIENCE_S):
            head = await self.reader.readexactly(16)
            (size,) = struct.unpack(">I", head[12:])
            serial, answer = split_frame(head + await self.reader.readexactly(size))
        assert serial == 5
        return answer

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def error_of(payload: bytes) -> tuple[int, str, str]:
    """Return the status, the class and the text of an error response."""
    assert payload[:3] == b"\x02\x08\x01"
    size = payload[3]
    header = ResponseHeader.FromString(payload[4 : 4 + size])
    body = RspExceptionBody.FromString(payload[4 + size + 1 :])
    return header.status, body.exceptionName, body.stackTrace


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_an_unknown_method_is_answered_as_by_a_real_server(version: int) -> None:
    async with serving() as served:
        raw = await RawFrames.open(served)
        request = rpc.encode_request(rpc.MASTER, 99, 1000, b"").replace(b"\x10\x03", b"\x10" + bytes([version]), 1)
        expected = 2, "java.lang.Exception", "IPC server handle request error :Unsupported method ID :99"
        assert error_of(await raw.ask(request)) == expected
        await raw.close()
        assert served.server.counts.refused_requests == 1


async def test_a_request_that_cannot_be_read_is_answered() -> None:
    async with serving() as served:
        raw = await RawFrames.open(served)
        status, name, _ = error_of(await raw.ask(b"\x02\x08\x00\x7f"))
        assert (status, name) == (2, "com.google.protobuf.InvalidProtocolBufferException")
        answer = await raw.ask(rpc.encode_request(rpc.MASTER, rpc.PRODUCER_REGISTER, 1000, b"\x0a\x01"))
        method, data = rpc.decode_response(answer)
        assert method == rpc.PRODUCER_REGISTER
        assert master_pb2.RegisterResponseM2P.FromString(data).errCode == 400
        await raw.close()


async def test_zero_bytes_after_a_request_are_ignored() -> None:
    async with serving() as served:
        raw = await RawFrames.open(served)
        body = master_pb2.CloseRequestP2M(clientId="p").SerializeToString()
        answer = await raw.ask(rpc.encode_request(rpc.MASTER, rpc.PRODUCER_CLOSE, 1000, body) + bytes(9))
        assert rpc.decode_response(answer)[0] == rpc.PRODUCER_CLOSE
        await raw.close()


async def test_what_is_no_frame_ends_the_connection() -> None:
    async with serving() as served:
        raw = await RawFrames.open(served)
        raw.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert await raw.reader.read() == b""
        await raw.close()


async def test_a_silent_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_S", 0.04)
    async with serving() as served:
        raw = await RawFrames.open(served)
        async with asyncio.timeout(PATIENCE_S):
            assert await raw.reader.read() == b""
        await raw.close()
