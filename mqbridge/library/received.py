"""The message class of consumers."""

from typing import Any

from mqbridge.message import Message, fields_of


class ReceivedMessage(Message):
    """A message with its topic and partition. Only the consumer that received it can acknowledge it.

    topic      the topic of the subscription
    partition  the partition as text, in the notation of the system: the index in Pulsar ("" for an unpartitioned topic),
               `broker:partition` in TubeMQ, `broker:queue` in RocketMQ
    handle     data with which the consumer acknowledges the message
    """

    __slots__ = ("handle", "partition", "topic")

    def __init__(self, message: Message, topic: str, partition: str, handle: Any) -> None:
        super().__init__(*fields_of(message))
        self.topic, self.partition, self.handle = topic, partition, handle
