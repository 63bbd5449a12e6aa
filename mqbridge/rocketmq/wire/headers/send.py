"""Headers of sends, of the recall of a delayed message, and of replies to request messages."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Self, cast

from mqbridge.rocketmq.wire.headers.base import Header, named

DEFAULT_TOPIC = "TBW102"
"""The topic whose settings brokers copy when they create a topic automatically."""


@dataclass(slots=True)
class SendHeader(Header):
    """Header of a send, a batch or a reply. Version 2 has one-letter names for the same fields; batches have no version 1.

    A broker that creates the topic automatically copies the settings of `default_topic`, with `default_topic_queue_nums` queues
    at most. `born_timestamp` is in ms, `sys_flag` consists of the bits of `record.SysFlag`, and `properties` is a property
    string. For a message sent to a retry topic, `reconsume_times` is the number of its redeliveries; after
    `max_reconsume_times`, the broker stores it in the dead letter topic instead (None: the group's own limit). `broker_name` is
    needed by proxies and ignored by brokers; mqbridge does not use `unit_mode`.
    """

    producer_group: str
    topic: str
    queue_id: int
    born_timestamp: int
    properties: str = ""
    sys_flag: int = 0
    flag: int = 0
    batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    unit_mode: bool = False
    default_topic: str = DEFAULT_TOPIC
    default_topic_queue_nums: int = 4
    broker_name: str | None = None

    def encode(self) -> dict[str, str]:
        """Return the extFields in version 2, for SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2."""
        ext = {
            "a": self.producer_group,
            "b": self.topic,
            "c": self.default_topic,
            "d": str(self.default_topic_queue_nums),
            "e": str(self.queue_id),
            "f": str(self.sys_flag),
            "g": str(self.born_timestamp),
            "h": str(self.flag),
            "i": self.properties,
            "j": str(self.reconsume_times),
            "k": "true" if self.unit_mode else "false",
            "m": "true" if self.batch else "false",
        }
        if self.max_reconsume_times is not None:
            ext["l"] = str(self.max_reconsume_times)
        if self.broker_name is not None:
            ext["n"] = self.broker_name
        return ext

    def encode_v1(self) -> dict[str, str]:
        """Return the extFields in version 1, for SEND_MESSAGE and SEND_REPLY_MESSAGE."""
        return Header.encode(self)

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """Parse extFields of either version; those of version 2 contain `b`. Raises RemoteProtocolError like `Header.decode`."""
        if "b" in ext:
            if (header := _decode_usual(ext)) is not None:
                return cast("Self", header)
            ext = {_V1_NAMES_BY_V2_NAME.get(name, name): value for name, value in ext.items()}
        return super(SendHeader, cls).decode(ext)  # `super()` fails, because `slots=True` replaces the class


_usual_numbers = itemgetter(*"defghj")
_BOOLEANS = {"true": True, "false": False}
_MAX_DIGITS = 18
"""Numbers of at most so many digits have 64 bits."""


def _decode_usual(ext: Mapping[str, str]) -> SendHeader | None:
    """Return the header in version 2 as all clients write it, in a quarter of the time; None for any other."""
    if "l" in ext:
        return None
    try:
        numbers = _usual_numbers(ext)
        unit_mode, batch = _BOOLEANS[ext["k"]], _BOOLEANS[ext.get("m", "false")]
        producer_group, topic, properties = ext["a"], ext["b"], ext["i"]
    except KeyError:
        return None
    digits = "".join(numbers)
    if not (digits.isascii() and digits.isdigit() and "" not in numbers and len(max(numbers, key=len)) <= _MAX_DIGITS):
        return None
    default_queues, queue_id, sys_flag, born, flag, reconsume_times = map(int, numbers)
    return SendHeader(
        producer_group,
        topic,
        queue_id,
        born,
        properties,
        sys_flag,
        flag,
        batch,
        reconsume_times,
        None,
        unit_mode,
        ext.get("c", DEFAULT_TOPIC),
        default_queues,
        ext.get("n"),
    )


_V1_NAMES_BY_V2_NAME = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "brokerName",
}


@dataclass(slots=True)
class SendResultHeader(Header):
    """Response to a send of a message, of a batch or of a reply.

    `msg_id` is the offset id of the message (see `ids`), `transaction_id` its UNIQ_KEY. For a batch, `msg_id` has the ids of all
    messages, joined by commas, and `queue_offset` is the offset of the first message; only a batch that the broker stores as one
    record (an inner batch) has a `batch_uniq_id`. `region` and `trace_on` are for message tracing, which mqbridge does not use.
    """

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = named("MSG_REGION", None)
    trace_on: bool | None = named("TRACE_ON", None)


@dataclass(slots=True)
class ReplyPushHeader(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: a broker delivers a reply to its requester. The hosts are `ip:port`."""

    producer_group: str
    topic: str
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    born_host: str
    store_host: str
    store_timestamp: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    default_topic: str = DEFAULT_TOPIC
    default_topic_queue_nums: int = 4
