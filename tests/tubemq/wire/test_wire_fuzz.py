"""Arbitrary bytes raise only protocol errors, and no more memory is used than a frame may take."""

import asyncio
import contextlib
import tracemalloc
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import MqbridgeError, ProtocolError, RemoteProtocolError, ServerRefused
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.client.consumer.flow_control import parse_rules
from mqbridge.tubemq.wire import rpc, string_formats
from mqbridge.tubemq.wire.frame import BLOCK_BYTES, MAX_BLOCKS, MAX_PAYLOAD_BYTES, TOKEN, FrameMeter, encode_frame, split_frame
from mqbridge.tubemq.wire.payload import split_payload
from mqbridge.tubemq.wire.pb import broker_pb2, master_pb2
from mqbridge.wire.cutter import FrameCutter
from tests.example_counts import examples
from tests.patience import PATIENCE_S

ANSWERS = [
    broker_pb2.SendMessageResponseB2P,
    broker_pb2.RegisterResponseB2C,
    broker_pb2.HeartBeatResponseB2C,
    broker_pb2.GetMessageResponseB2C,
    broker_pb2.CommitOffsetResponseB2C,
    master_pb2.RegisterResponseM2P,
    master_pb2.HeartResponseM2P,
    master_pb2.RegisterResponseM2C,
    master_pb2.HeartResponseM2C,
    master_pb2.RegisterResponseM2CV2,
    master_pb2.HeartResponseM2CV2,
    master_pb2.GetPartMetaResponseM2C,
]
PARSERS = [
    string_formats.parse_broker,
    string_formats.parse_partition,
    string_formats.parse_subscription,
    string_formats.parse_failure,
    string_formats.parse_member_partition,
    string_formats.parse_condition,
    string_formats.parse_topic_info,
    string_formats.parse_topic_meta,
    string_formats.parse_key,
    string_formats.parse_start_offsets,
    string_formats.parse_held_partitions,
    parse_rules,
]
good = encode_frame(7, rpc.encode_response(rpc.GET, b"x" * 300))
damaged = st.builds(
    lambda at, noise: good[:at] + noise + good[at + len(noise) :], st.integers(0, len(good)), st.binary(max_size=12)
)
streams = st.lists(st.one_of(st.just(good), damaged, st.binary(max_size=60)), max_size=6).map(b"".join)


@given(streams, st.lists(st.integers(1, 50), max_size=40))
@settings(max_examples=examples(400))
def test_damaged_streams_raise_only_protocol_errors(stream: bytes, steps: list[int]) -> None:
    cutter = FrameCutter(FrameMeter().measure)
    at = 0
    try:
        for step in [*steps, len(stream)]:
            for frame in cutter.feed(stream[at : at + step]):
                _, payload = split_frame(frame)
                rpc.decode_response(payload)
            at += step
            assert cutter.buffered <= at
    except (RemoteProtocolError, ServerRefused):
        return


@given(st.integers(0, 0xFFFFFFFF), st.lists(st.integers(0, 0xFFFFFFFF), max_size=4))
def test_no_frame_is_measured_larger_than_the_largest_one(blocks: int, sizes: list[int]) -> None:
    """The lengths that a peer claims are checked before memory is used for them."""
    data = pack(">III", TOKEN, 1, blocks) + b"".join(pack(">I", size) for size in sizes[:1])
    try:
        need = FrameMeter().measure(data, 0)
    except RemoteProtocolError:
        return
    assert need <= 12 + MAX_BLOCKS * 4 + MAX_PAYLOAD_BYTES


def test_memory_of_a_frame_that_never_ends() -> None:
    """At most 28 MiB of the frame are kept, in one copy; then it is refused."""
    cutter = FrameCutter(FrameMeter().measure)
    blocks = (pack(">I", BLOCK_BYTES) + bytes(BLOCK_BYTES)) * 256
    cutter.feed(pack(">III", TOKEN, 1, MAX_BLOCKS))
    tracemalloc.start()
    for _ in range(MAX_BLOCKS // 256 - 1):
        assert not cutter.feed(blocks)
    assert not cutter.feed(blocks[: -(4 + BLOCK_BYTES)])
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cutter.buffered < MAX_PAYLOAD_BYTES + MAX_BLOCKS * 4 + 12
    assert held < 2.5 * MAX_PAYLOAD_BYTES
    with pytest.raises(RemoteProtocolError):
        cutter.feed(pack(">I", BLOCK_BYTES + 1))


@given(st.binary(max_size=200))
def test_payloads(payload: bytes) -> None:
    for decode in (rpc.decode_request, rpc.decode_response):
        try:
            decode(payload)
        except (RemoteProtocolError, ServerRefused):
            continue


@given(st.sampled_from(ANSWERS), st.binary(max_size=200))
def test_answers(kind: type[broker_pb2.GetMessageResponseB2C], data: bytes) -> None:
    try:
        rpc.parse(kind, data)
    except RemoteProtocolError:
        return


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@given(st.one_of(st.text(max_size=40), st.text(alphabet='0123456789:#,=@- atopic[]{}"', max_size=60)))
def test_texts(parse: object, written: str) -> None:
    try:
        parse(written)  # type: ignore[operator]
    except ProtocolError:
        return


@given(st.binary(max_size=100), st.integers(0, 3))
def test_any_message_data_is_read_without_loss(data: bytes, flag: int) -> None:
    attributes, body = split_payload(data, flag)
    assert len(attributes or b"") + len(body) <= len(data)


@given(streams)
@settings(max_examples=examples(25))
def test_a_call_survives_arbitrary_bytes_of_a_server(stream: bytes) -> None:
    """A call ends with a response or an error, whatever bytes the server sends."""

    async def run() -> None:
        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(stream)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        connection = ServerConnection("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            async with asyncio.timeout(PATIENCE_S):
                with contextlib.suppress(MqbridgeError):
                    await connection.request(rpc.READ, rpc.GET, b"x")
        finally:
            await connection.close()
            server.close()
            await server.wait_closed()

    asyncio.run(run())
