"""A message as a consumer hands it out."""

from typing import Any

from mqbridge.message import Message, fields_of


class ReceivedMessage(Message):
    """A message, and where it was read. It is acknowledged by the consumer that handed it out.

    topic      the topic that was subscribed to
    partition  in the system's own spelling: a number of Pulsar ("" for an unpartitioned topic), `broker:partition` of TubeMQ,
               `broker:queue` of RocketMQ
    handle     what its consumer needs to acknowledge it
    """

    __slots__ = ("handle", "partition", "topic")

    def __init__(self, message: Message, topic: str, partition: str, handle: Any) -> None:
        super().__init__(*fields_of(message))
        self.topic, self.partition, self.handle = topic, partition, handle
