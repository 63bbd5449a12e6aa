"""Units of the format `rocketmq.record` -> RocketMQ send requests that store them as they are.

All records are sent in batches, also a single one. A broker stores the property string of a message in a batch unchanged, with
its own entries behind it, and acts on none of them: a delay that has elapsed, a transaction or a timer is not begun again.

The header of a batch carries one system flag (a compressed body), one number of redeliveries and one born timestamp for all its
messages. Consecutive records share a batch if they have the first two in common. Born timestamps nearly always differ, and one
request for each record would be many times slower. So a batch has that of its first message, as a batch of messages has, and the
others are stored with this born timestamp instead of their own. Nothing else of a record in a batch is lost.

Brokers limit the body of a batch, framing included. A record that is within the limit only without the framing is sent as a
single message. There the broker acts on the properties and reorders them, so those on which it acts are left out.

Records that are to be delivered later (`Share.deliver_at`) are single messages, too, because brokers delay no others. They keep
the properties with which their producer has asked for the delay, and get one if they have none on which this broker acts.
"""

from collections.abc import Sequence

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure, RemoteProtocolError
from mqbridge.message import Unit
from mqbridge.rocketmq.mapping.batch_builder import born_at
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES, Limits, oversize_reason
from mqbridge.rocketmq.mapping.request import EncodedRequest
from mqbridge.rocketmq.wire.batch import OVERHEAD_BYTES, Element, encode_batch
from mqbridge.rocketmq.wire.neutral_record import Content, read_neutral
from mqbridge.rocketmq.wire.properties import TIMER_NAMES, VALUE_END, Name, encode, find, strip_effective


def encode_units(
    units: Sequence[Unit], limits: Limits, now: int, deliver_at: int | None = None
) -> tuple[list[EncodedRequest], list[MessageFailure]]:
    """Encode units, in order; return a failure for each one that RocketMQ cannot store.

    Both times are in ms since the epoch. All units are delayed until `deliver_at`, unless it is in the past.
    """
    builder = _UnitRequests(limits, now, deliver_at if deliver_at is not None and deliver_at > now else None)
    for index, unit in enumerate(units):
        builder.add(index, unit)
    builder.close_batch()
    return builder.requests, builder.failures


class _UnitRequests:
    """Encodes units, and collects the `requests` for them and the `failures` of those that cannot be sent."""

    def __init__(self, limits: Limits, now: int, deliver_at: int | None) -> None:
        self._limits, self._now, self._deliver_at = limits, now, deliver_at
        self.requests: list[EncodedRequest] = []
        self.failures: list[MessageFailure] = []
        self._elements: list[Element] = []
        """The messages of the current batch."""
        self._first_index = self._size = 0
        """The index of its first message, and its bytes."""
        self._born = 0
        """The born timestamp of its first message."""
        self._header = (0, 0)
        """The system flag and the number of redeliveries that all of its messages have."""

    def add(self, index: int, unit: Unit) -> None:
        """Add the unit at this index."""
        try:
            content = read_neutral(unit.data)
        except RemoteProtocolError as error:
            self._refuse(index, f"it could not be read: {error}")
            return
        problem = self._problem(content)
        if problem is not None:
            self._refuse(index, problem)
        elif self._deliver_at is not None:
            self._add_delayed(index, content, self._deliver_at)
        elif OVERHEAD_BYTES + len(content.body) + len(content.properties) > self._limits.max_message_bytes:
            self._add_alone(index, content, strip_effective(content.properties))
        else:
            self._add_to_batch(index, content)

    def _problem(self, content: Content) -> str | None:
        """Return the reason why no broker stores this record; None if there is none."""
        max_bytes = self._limits.max_message_bytes
        if not content.body:
            return "it has no body, and RocketMQ stores no message without one"
        if len(content.body) > max_bytes:
            return f"its body has {len(content.body)} bytes, the broker takes {max_bytes} (maxMessageSize)"
        if len(content.properties) > MAX_PROPERTIES_BYTES:
            return oversize_reason(content.properties)
        return None

    def _add_to_batch(self, index: int, content: Content) -> None:
        size = OVERHEAD_BYTES + len(content.body) + len(content.properties)
        header = content.sys_flag, content.reconsume_times
        is_full = self._size + size > self._limits.max_bytes or len(self._elements) >= self._limits.max_messages
        if self._elements and (is_full or header != self._header):
            self.close_batch()
        if not self._elements:
            self._first_index, self._header = index, header
            self._born = born_at(content.born_timestamp, self._now)
        self._elements.append((content.flag, content.body, content.properties))
        self._size += size

    def close_batch(self) -> None:
        """Finish the current batch, unless it is empty."""
        if not self._elements:
            return
        sys_flag, reconsume_times = self._header
        indexes = range(self._first_index, self._first_index + len(self._elements))
        self.requests.append(
            EncodedRequest(
                encode_batch(self._elements),
                indexes,
                born=self._born,
                is_batch=True,
                sys_flag=sys_flag,
                reconsume_times=reconsume_times,
            )
        )
        self._elements, self._size = [], 0

    def _add_delayed(self, index: int, content: Content, deliver_at: int) -> None:
        """Add a record that is delivered later."""
        try:
            properties = delayed_properties(content.properties, self._limits, deliver_at, self._now)
        except ValueError as error:
            self._refuse(index, str(error))
            return
        if len(properties) > MAX_PROPERTIES_BYTES:
            self._refuse(index, oversize_reason(properties))
        else:
            self._add_alone(index, content, properties, is_delayed=True)

    def _add_alone(self, index: int, content: Content, properties: bytes, *, is_delayed: bool = False) -> None:
        """Add a record that is delayed, or does not fit a batch, with these properties."""
        self.close_batch()
        try:
            properties.decode()  # the header of a single message carries them as text
        except UnicodeDecodeError:
            why = "it cannot be delayed" if is_delayed else "it does not fit a batch"
            self._refuse(index, f"its properties are not UTF-8, and with those {why}")
            return
        self.requests.append(
            EncodedRequest(
                content.body,
                range(index, index + 1),
                born=born_at(content.born_timestamp, self._now),
                is_batch=False,
                properties=properties,
                flag=content.flag,
                sys_flag=content.sys_flag,
                reconsume_times=content.reconsume_times,
                delayed=is_delayed,
            )
        )

    def _refuse(self, index: int, reason: str) -> None:
        self.close_batch()
        self.failures.append(MessageFailure(index, Failure.REFUSED, reason))


def delayed_properties(block: bytes, limits: Limits, deliver_at: int, now: int) -> bytes:
    """Return the property string with which a broker delays a record, and does nothing else.

    The record's own entries for a delay stay as they are if the broker acts on one of them: as it would if the producer had sent
    the record there. Otherwise an entry for `deliver_at` is added. Raises ValueError if the broker does not delay for so long.
    """
    kept = strip_effective(block, keep_delay=True)
    has_level = (find(kept, Name.DELAY) or "0") != "0"  # brokers delay nothing at level 0, and then look for a timer
    has_timer = limits.has_timers and any(find(kept, name) is not None for name in TIMER_NAMES)
    if has_level or has_timer:
        return kept
    separator = b"" if not kept or kept.endswith(VALUE_END.encode()) else VALUE_END.encode()
    return kept + separator + encode([limits.delay_property(deliver_at, now)])
