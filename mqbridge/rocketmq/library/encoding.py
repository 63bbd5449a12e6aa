"""Messages of programs as send requests: as the gateway's mapping writes them, with the delay levels and compression of Java."""

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure, MappingError
from mqbridge.message import Pair
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.mapping.batch_builder import born_at
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES, Limits, too_many
from mqbridge.rocketmq.mapping.read_block import PLACEHOLDER
from mqbridge.rocketmq.mapping.request import EncodedRequest, Reserve, encode
from mqbridge.rocketmq.mapping.write_block import write_block
from mqbridge.rocketmq.wire import compression
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.delay_levels import MAX_LEVEL
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import SysFlag

Compression = Literal["none", "zlib", "lz4", "zstd"]
"""Consumers before 4.9.4 read zlib only."""
COMPRESS_BYTES = 4096
"""Payloads from this size on are compressed, as the Java clients do."""
BATCH_BYTES = 1 << 20
BATCH_MESSAGES = 1000


class MessageEncoder:
    """Encodes messages in their order: into batches, and alone what has a delay or is compressed."""

    def __init__(
        self, reserve_ids: Reserve, unique_id: Callable[[], str], compression_name: Compression, max_message_bytes: int
    ) -> None:
        codec = compression.NAMES.get(compression_name)
        if codec is None and compression_name != "none":
            raise MappingError(f"compression {compression_name!r} is not known; there are none, {', '.join(compression.NAMES)}")
        self._reserve_ids, self._unique_id, self._codec = reserve_ids, unique_id, codec
        self._max_message_bytes = max_message_bytes
        self.delay_levels: Sequence[int] | None = None
        """Delays (ms) of brokers before 5.0, () for brokers that keep a message until any time; None until they are asked."""

    def encode(self, messages: Sequence[OutgoingMessage]) -> tuple[list[EncodedRequest], list[MessageFailure]]:
        """Encode messages for one queue; a failure for each that RocketMQ cannot carry."""
        now = time.time_ns() // 1_000_000
        limits = Limits(
            min(BATCH_BYTES, self._max_message_bytes), BATCH_MESSAGES, self._max_message_bytes, levels=self.delay_levels or ()
        )
        requests: list[EncodedRequest] = []
        failures: list[MessageFailure] = []
        index = 0
        for alone, group in groupby(messages, self.is_alone):
            part = list(group)
            if alone:
                for message in part:
                    try:
                        request = self.encode_alone(message)
                    except MappingError as error:
                        failures.append(MessageFailure(index, Failure.REFUSED, str(error)))
                    else:
                        request.indexes = range(index, index + 1)
                        requests.append(request)
                    index += 1
                continue
            found, refused = encode([message.as_message() for message in part], None, limits, now, self._reserve_ids)
            for request in found:
                request.indexes = range(request.indexes.start + index, request.indexes.stop + index)
            requests += found
            failures += [MessageFailure(failure.index + index, failure.failure_kind, failure.reason) for failure in refused]
            index += len(part)
        return requests, failures

    def is_alone(self, message: OutgoingMessage) -> bool:
        """Return True for a message that no batch can hold; a `deliver_at` is the mapping's matter."""
        is_compressed = self._codec is not None and len(message.payload or b"") >= COMPRESS_BYTES and message.deliver_at is None
        return is_compressed or message.delay_level > 0

    def encode_alone(
        self, message: OutgoingMessage, more: Sequence[Pair] = (), unique_id: str | None = None, sys_flag: int = 0
    ) -> EncodedRequest:
        """Encode one message as a request of its own, with `more` properties of the system. Raises MappingError."""
        if message.delay_level and not 0 < message.delay_level <= MAX_LEVEL:
            raise MappingError(f"delay_level {message.delay_level}: brokers know the levels 1 to {MAX_LEVEL}")
        delay = (Name.DELAY, str(message.delay_level)) if message.delay_level else None
        try:
            block, flag = write_block(message.as_message(), None, alone=True, delay=delay)
        except UnicodeEncodeError as error:
            raise MappingError(f"its texts are no Unicode text: {error}") from error
        if len(block) > MAX_PROPERTIES_BYTES:
            raise MappingError(too_many(block))
        if unique_id is not None or props.find(block, Name.UNIQ_KEY) is None:
            block += props.encode([(Name.UNIQ_KEY, unique_id or self._unique_id())])
        body, compressed = self._compress(message.payload or PLACEHOLDER)
        if len(body) > self._max_message_bytes:
            raise MappingError(f"its payload has {len(body)} bytes, the broker takes {self._max_message_bytes} (maxMessageSize)")
        return EncodedRequest(
            body,
            range(1),
            born=born_at(message.event_time, time.time_ns() // 1_000_000),
            is_batch=False,
            properties=block + props.encode(more),
            flag=flag,
            sys_flag=sys_flag | compressed,
            delayed=delay is not None,
        )

    def _compress(self, body: bytes) -> tuple[bytes, int]:
        """The body, compressed where that helps, and the system flag that says so."""
        if self._codec is None or len(body) < COMPRESS_BYTES:
            return body, 0
        packed = compression.compress(self._codec, body)
        return (packed, SysFlag.COMPRESSED | self._codec) if len(packed) < len(body) else (body, 0)
