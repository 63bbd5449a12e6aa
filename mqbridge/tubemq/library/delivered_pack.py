"""Acknowledgement of single messages. TubeMQ itself confirms only whole packs.

A pack is the messages that one get request returned. A `DeliveredPack` confirms its pack when all of its messages are
acknowledged. Until then the Broker sends no further pack of the partition.
"""

from collections.abc import Collection, Sequence
from datetime import tzinfo

from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Message
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.mapping.stored import decode


class DeliveredPack:
    """Tracks which messages of a pack are acknowledged, by their index. It is the `handle` of each ReceivedMessage.

    zone           the time zone of `$msgTime$`
    skipped        indexes of messages not to deliver: acknowledged in an earlier delivery, or before the position of a seek
    types          message types to deliver, empty for all; Brokers compare only hashes of types, so they may send others, too
    redeliveries   number of earlier deliveries of the same pack to this consumer
    """

    __slots__ = (
        "_acknowledged",
        "_confirmed",
        "_messages",
        "_next_index",
        "_partition",
        "_zone",
        "pack",
        "redeliveries",
        "types",
    )

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
        self._partition, self.pack = partition, pack
        self._zone, self.types = zone, types
        self.redeliveries = redeliveries
        # None until the first message is requested, and again when the pack is confirmed or rejected.
        self._messages: Sequence[Message] | None = None
        self._next_index = 0
        self._acknowledged = set(skipped)
        self._confirmed = False

    @property
    def is_confirmed(self) -> bool:
        """True once all messages of the pack are acknowledged."""
        return self._confirmed

    @property
    def acknowledged(self) -> frozenset[int]:
        """Indexes of the acknowledged and skipped messages, and of those that `next_message` passed over because of `types`."""
        return frozenset(self._acknowledged)

    @property
    def is_outstanding(self) -> bool:
        """True until the pack is confirmed or rejected, its partition is revoked, or the consumer seeks."""
        return self._partition.pack is self.pack

    def next_message(self) -> ReceivedMessage | None:
        """Return the next message to deliver; None after the last one, or if the pack is no longer outstanding."""
        partition = self._partition
        while partition.pack is self.pack:
            messages = self._decode_messages()
            index = self._next_index
            if index == len(messages):
                return None
            self._next_index = index + 1
            if index + 1 == len(messages):
                partition.release_pack_bytes()  # all messages are delivered: the read budget no longer counts the pack
            if index in self._acknowledged:
                continue
            message = messages[index]
            if self.types and message.defect is None and message.msg_type not in self.types:
                self.acknowledge(index)
                continue
            received = ReceivedMessage(message, partition.ref.topic, partition.ref.name, self)
            received.delivery_count = self.redeliveries  # it counts earlier deliveries
            return received
        return None

    def acknowledge(self, index: int) -> bool:
        """Mark the message with this index as acknowledged; confirm the pack when all of its messages are.

        Return False, without any effect, if the pack was rejected, its partition was revoked, or a seek made it obsolete. If the
        pack was confirmed before, return True, also without effect.
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
        """Drop the references to the messages. A message that the program keeps refers to this object, and so to the pack."""
        self._messages, self.pack.messages = None, ()

    def _decode_messages(self) -> Sequence[Message]:
        """Return the decoded messages; decode them on the first call."""
        if self._messages is None:
            self._messages = decode(self.pack.messages, self.pack.offset, self._zone)
        return self._messages
