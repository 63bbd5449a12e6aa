"""Encodes an application's messages as send requests: with the gateway's mapping, plus delay levels and compression.

A message is a request of its own if it has a delay level or a compressed body, if its `deliver_at` is in the future, or if it is
within the broker's limit only without the framing of a batch. Other messages share batches.
"""

import time
from collections.abc import Callable, Sequence
from itertools import groupby

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure, MappingError
from mqbridge.message import Pair
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.mapping.batch_builder import born_at
from mqbridge.rocketmq.mapping.compacted import NO_KEY, with_index_key
from mqbridge.rocketmq.mapping.compressed_body import MIN_COMPRESSED_BYTES, Compression, compress_body
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES, Limits, oversize_reason
from mqbridge.rocketmq.mapping.read_block import PLACEHOLDER
from mqbridge.rocketmq.mapping.request import EncodedRequest, ReserveIds, encode
from mqbridge.rocketmq.mapping.write_block import write_block
from mqbridge.rocketmq.wire import compression
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.delay_levels import MAX_LEVEL
from mqbridge.rocketmq.wire.properties import Name

MAX_BATCH_BYTES = 1 << 20
"""Limit of the encoded messages of one batch. Brokers accept up to their `maxMessageSize`, 4 MiB by default."""
MAX_BATCH_MESSAGES = 1000
"""Limit of the messages of one batch."""


class MessageEncoder:
    """Encodes the messages of one producer, in order, to batches and single sends.

    `reserve_ids` makes the ids (UNIQ_KEY) of messages in batches, `unique_id` makes the id of a single message.
    `max_message_bytes` is the `maxMessageSize` of the brokers. `requires_keys` is True for a compacted topic, whose messages need
    KEYS.
    """

    def __init__(
        self,
        reserve_ids: ReserveIds,
        unique_id: Callable[[], str],
        compression_name: Compression,
        max_message_bytes: int,
        *,
        requires_keys: bool = False,
    ) -> None:
        codec = compression.NAMES.get(compression_name)
        if codec is None and compression_name != "none":
            raise MappingError(f"unknown compression {compression_name!r}; allowed are: none, {', '.join(compression.NAMES)}")
        self._reserve_ids, self._unique_id, self._codec = reserve_ids, unique_id, codec
        self._max_message_bytes, self._requires_keys = max_message_bytes, requires_keys
        self.delay_levels: Sequence[int] | None = None
        """The delays in ms of brokers before 5.0, from level 1 on; () for later brokers, which deliver at any time.

        The producer queries the brokers for them before its first message with `deliver_at`. None before the query and if it
        fails; None has the effect of ().
        """

    def encode(self, messages: Sequence[OutgoingMessage]) -> tuple[list[EncodedRequest], list[MessageFailure]]:
        """Encode messages for one queue, in order; return a failure for each message that RocketMQ cannot store."""
        now = time.time_ns() // 1_000_000
        limits = Limits(
            min(MAX_BATCH_BYTES, self._max_message_bytes),
            MAX_BATCH_MESSAGES,
            self._max_message_bytes,
            levels=self.delay_levels or (),
            requires_keys=self._requires_keys,
        )
        requests: list[EncodedRequest] = []
        failures: list[MessageFailure] = []
        index = 0  # of the next message in `messages`; the mapping counts from the beginning of its part
        for is_single, group in groupby(messages, self.needs_single_send):
            part = list(group)
            if is_single:
                for message in part:
                    try:
                        request = self.encode_single(message)
                    except MappingError as error:
                        failures.append(MessageFailure(index, Failure.REFUSED, str(error)))
                    else:
                        request.indexes = range(index, index + 1)
                        requests.append(request)
                    index += 1
                continue
            origin = None  # messages of an application come from no source partition
            encoded, refused = encode([message.as_message() for message in part], origin, limits, now, self._reserve_ids)
            for request in encoded:
                request.indexes = range(request.indexes.start + index, request.indexes.stop + index)
            requests += encoded
            failures += [MessageFailure(failure.index + index, failure.failure_kind, failure.reason) for failure in refused]
            index += len(part)
        return requests, failures

    def needs_single_send(self, message: OutgoingMessage) -> bool:
        """Return True if the message has a delay level or is compressed, so no batch can hold it.

        False for a message with `deliver_at`, whose field `delay_level` is 0: the mapping's `encode`, which `self.encode` calls
        for all other messages, sends it alone if necessary, uncompressed.
        """
        is_compressed = (
            self._codec is not None and len(message.payload or b"") >= MIN_COMPRESSED_BYTES and message.deliver_at is None
        )
        return is_compressed or message.delay_level != 0

    def encode_single(
        self, message: OutgoingMessage, system_properties: Sequence[Pair] = (), unique_id: str | None = None, sys_flag: int = 0
    ) -> EncodedRequest:
        """Encode one message as a request of its own, compressed if large enough. Raises MappingError.

        `system_properties` follow the message's own; the bits of `sys_flag` are set on the message. `unique_id` is appended as
        UNIQ_KEY, and clients prefer it to a UNIQ_KEY among the properties. With None, that one stays, or a new one is made.
        """
        if message.delay_level and not 0 < message.delay_level <= MAX_LEVEL:
            raise MappingError(f"delay_level is {message.delay_level}; allowed are 0 (no delay) and the levels 1 to {MAX_LEVEL}")
        delay = (Name.DELAY, str(message.delay_level)) if message.delay_level else None
        with_key = with_index_key(message.as_message()) if self._requires_keys else message.as_message()
        if with_key is None:
            raise MappingError(NO_KEY)
        try:
            # stamp=None: no origin is written, because messages of an application come from no source partition
            block, flag = write_block(with_key, stamp=None, alone=True, delay=delay)
        except UnicodeEncodeError as error:
            raise MappingError(f"a text of the message cannot be encoded as UTF-8: {error}") from error
        if len(block) > MAX_PROPERTIES_BYTES:
            raise MappingError(oversize_reason(block))
        if unique_id is not None or props.find(block, Name.UNIQ_KEY) is None:
            block += props.encode([(Name.UNIQ_KEY, unique_id or self._unique_id())])
        body, compression_bits = compress_body(self._codec, message.payload or PLACEHOLDER)  # brokers refuse an empty body
        if len(body) > self._max_message_bytes:
            compressed = " when compressed" if compression_bits else ""
            raise MappingError(
                f"the payload has {len(body)} bytes{compressed}; "
                f"brokers accept at most {self._max_message_bytes} (maxMessageSize)"
            )
        return EncodedRequest(
            body,
            range(1),
            born=born_at(message.event_time, time.time_ns() // 1_000_000),
            is_batch=False,
            properties=block + props.encode(system_properties),
            flag=flag,
            sys_flag=sys_flag | compression_bits,
            delayed=delay is not None,
        )
