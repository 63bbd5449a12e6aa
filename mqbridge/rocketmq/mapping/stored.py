"""RocketMQ record <-> `Message`.

Messages travel in batches, whose elements keep their property strings as written; a delayed one, or one that is too large for a
batch, is sent alone. What becomes of which field is in `fields`; `reading` and `writing` do it in the plain way, `native` and
`batches` fast.
"""

from collections.abc import Sequence

from mqbridge.adapter import MessageFailure
from mqbridge.message import Message
from mqbridge.rocketmq.mapping.fast import read_all
from mqbridge.rocketmq.mapping.request import Batches, Limits, Outgoing, Reserve
from mqbridge.rocketmq.wire.record import Record

__all__ = ["Limits", "Outgoing", "decode", "encode"]


def decode(records: Sequence[Record]) -> list[Message]:
    """The messages of records; one that is damaged becomes a Message with its `defect`."""
    return read_all(records)


def encode(
    messages: Sequence[Message], origin: str | None, limits: Limits, now: int, reserve_ids: Reserve | None = None
) -> tuple[list[Outgoing], list[MessageFailure]]:
    """Batches and single sends that hold the messages in order, and a failure for each that RocketMQ cannot hold.

    `origin` is what every stamp begins with, None for no stamps. A message whose `deliver_at` lies after `now` (ms) is sent
    alone, with a timer. `reserve_ids` gives ids to messages without one: only by its UNIQ_KEY has a message the same id for Java
    consumers each time that it is delivered. Such an id stands behind what is ours, where readers take it for a broker's.
    """
    batches = Batches(limits, origin, now, reserve_ids)
    batches.add_all(messages)
    return batches.sends, batches.failures
