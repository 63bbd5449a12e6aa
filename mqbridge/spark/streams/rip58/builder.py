"""StreamBuilder: where a job in the words of RIP-58 begins."""

from typing import Any

from pyspark.sql import DataFrame

from mqbridge.spark.streams.rip58.codecs import JSON, Codec
from mqbridge.spark.streams.rip58.plan import Chain, Context, Node, Output, Topology
from mqbridge.spark.streams.rip58.rows import PayloadReader, PayloadWriter
from mqbridge.spark.streams.rip58.rstream import RStream


class StreamBuilder:
    """Builds the topology of one job, whose identity is its name and its checkpoint.

    `codec` carries values from task to task and into state: JSON, or PickleCodec() for objects of classes of one's own.
    """

    def __init__(self, jobId: str, codec: Codec = JSON) -> None:
        self._topology = Topology(jobId)
        self._codec = codec

    def source(self, topic: str, deserializer: Any, *, deadLetters: str | None = None, **options: str) -> RStream:
        """Messages of a topic: `deserializer(payload)`, or an object with `deserialize`, gives the value, or a Pair with a key.

        Payloads for which it fails go into the topic `deadLetters` as they are, or nowhere. Options go to the source.
        """

        def frame(context: Context) -> DataFrame:
            return context.source(topic, options)

        reader = PayloadReader(getattr(deserializer, "deserialize", deserializer))
        chain = Chain(self._topology, Node(frame, reader))
        if deadLetters is not None:
            self._topology.add(Output("deadLetters", chain, PayloadWriter(_nothing), deadLetters))
        return RStream(chain, self._codec)

    def build(self) -> Topology:
        """What a StreamJob runs. Raises ValueError when nothing is written."""
        return self._topology.built()


class KeyValueSerializer:
    """For those who like classes: override `serialize`. A function of key and value does as well."""

    def serialize(self, key: Any, data: Any) -> bytes | None:
        """The payload of an element."""
        raise NotImplementedError


class KeyValueDeserializer:
    """For those who like classes: override `deserialize`. A function of the payload does as well."""

    def deserialize(self, source: bytes) -> Any:
        """The value of a payload, or a Pair of key and value."""
        raise NotImplementedError


def _nothing(_key: Any, _value: Any) -> bytes | None:
    return None
