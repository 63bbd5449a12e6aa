"""Acknowledgement of packs, message by message. A pack is the messages that one get request returned.

TubeMQ confirms packs as a whole: a pack is confirmed when all of its messages are acknowledged. Until then the Broker sends no
further pack of the partition.
"""

from collections.abc import Collection, Sequence
from datetime import tzinfo

from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Message
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.partition_reader import Pack
from mqbridge.tubemq.mapping.stored import decode


class DeliveredPack:
    """Tracks which messages of a pack are acknowledged; the `handle` of its messages, which are identified by index.

    skipped        indexes of messages not to hand out: already acknowledged, or in front of the position of a seek
    types          message types to hand out, empty for all. Brokers compare hashes of types, so they may send others, too
    redeliveries   how often this consumer has had the pack delivered again
    """

    __slots__ = ("_acknowledged", "_confirmed", "_messages", "_next", "_partition", "_zone", "pack", "redeliveries", "types")

    def __init__(
        self,
        partition: HeldPartition,
        pack: Pack,
        zone: tzinfo,
        *,
        skipped: Collection[int] = (),
        types: Collection[str] = (),
        redeliveries: int = 0,
    ) -> None:
        self._partition, self.pack, self._zone, self.types = partition, pack, zone, types
        self.redeliveries = redeliveries
        self._messages: Sequence[Message] | None = None
        self._next = 0
        self._acknowledged = set(skipped)
        self._confirmed = False

    @property
    def is_confirmed(self) -> bool:
        """True once all of its messages were acknowledged."""
        return self._confirmed

    @property
    def acknowledged(self) -> frozenset[int]:
        """Indexes of the messages that need no acknowledgement any more: acknowledged, skipped or filtered."""
        return frozenset(self._acknowledged)

    @property
    def is_outstanding(self) -> bool:
        """True until it is confirmed or rejected, the partition is revoked, or the consumer seeks."""
        return self._partition.pack is self.pack

    def next_message(self) -> ReceivedMessage | None:
        """Return the next message to hand out; None if there is none, or the pack is no longer outstanding."""
        partition = self._partition
        while partition.pack is self.pack:
            messages = self._decoded()
            index = self._next
            if index == len(messages):
                return None
            self._next = index + 1
            if index + 1 == len(messages):
                partition.release_pack_bytes()  # the last message is handed out: release the pack's bytes from the read budget
            if index in self._acknowledged:
                continue
            message = messages[index]
            if self.types and message.defect is None and message.msg_type not in self.types:
                self.acknowledge(index)
                continue
            received = ReceivedMessage(message, partition.ref.topic, partition.ref.name, self)
            received.delivery_count = self.redeliveries
            return received
        return None

    def acknowledge(self, index: int) -> bool:
        """Mark a message as acknowledged; the last one confirms the pack.

        Return False if the pack is no longer outstanding, unless it was confirmed.
        """
        if not self.is_outstanding:
            return self._confirmed
        self._acknowledged.add(index)
        if len(self._acknowledged) >= len(self.pack.messages):
            self._confirmed = True
            self._partition.confirm()
            self._free_messages()
        return True

    def reject(self, delay_s: float) -> bool:
        """Have the pack delivered again after `delay_s` seconds; return False if it is no longer outstanding."""
        if not self.is_outstanding:
            return False
        self._partition.reject(delay_s)
        self._partition.release_pack_bytes()
        self._free_messages()
        return True

    def _free_messages(self) -> None:
        """Drop the references to the messages: a message that the program keeps would otherwise keep the whole pack."""
        self._messages, self.pack.messages = None, ()

    def _decoded(self) -> Sequence[Message]:
        if self._messages is None:
            self._messages = decode(self.pack.messages, self.pack.offset, self._zone)
        return self._messages
