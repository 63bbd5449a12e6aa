"""StreamBuilder, the entry point for jobs that use the API of RIP-58."""

from typing import Any

from pyspark.sql import DataFrame

from mqbridge.spark.streams.rip58.codecs import JSON, Codec
from mqbridge.spark.streams.rip58.plan import Chain, Context, Node, Output, Topology
from mqbridge.spark.streams.rip58.rows import PayloadReader, PayloadWriter
from mqbridge.spark.streams.rip58.rstream import RStream


class StreamBuilder:
    """Builds the topology of one job. A job is identified by its name `jobId` and its checkpoint.

    `codec` encodes the values that move between tasks or are stored as state: JSON, or PickleCodec() for objects of custom
    classes.
    """

    def __init__(self, jobId: str, codec: Codec = JSON) -> None:
        self._topology = Topology(jobId)
        self._codec = codec

    def source(self, topic: str, deserializer: Any, *, deadLetters: str | None = None, **options: str) -> RStream:
        """Return a stream of the messages of a topic.

        `deserializer` is a function of the payload, or an object with the method `deserialize`. It returns a value, or a Pair of
        key and value. Payloads for which it fails are written unchanged to the topic `deadLetters`, if one is given. The other
        outputs skip such a payload, or fail if the job's property `StreamConfig.SKIP_DATA_ERROR` is false. The options are those
        of the Spark source.
        """

        def frame(context: Context) -> DataFrame:
            return context.source(topic, options)

        reader = PayloadReader(getattr(deserializer, "deserialize", deserializer))
        chain = Chain(self._topology, Node(frame, reader))
        if deadLetters is not None:
            self._topology.add(Output("deadLetters", chain, PayloadWriter(_no_payload), deadLetters))
        return RStream(chain, self._codec)

    def build(self) -> Topology:
        """Return the topology for a StreamJob. Raises ValueError if it has no output."""
        return self._topology.build()


class KeyValueSerializer:
    """Optional base class of serializers. A plain function of key and value works too."""

    def serialize(self, key: Any, data: Any) -> bytes | None:
        """Return the payload for a key and a value; None for a message without payload (a tombstone)."""
        raise NotImplementedError


class KeyValueDeserializer:
    """Optional base class of deserializers. A plain function of the payload works too."""

    def deserialize(self, source: bytes) -> Any:
        """Return the value of a payload, or a Pair of key and value."""
        raise NotImplementedError


def _no_payload(_key: Any, _value: Any) -> bytes | None:
    """Serialize nothing: the output of dead letters writes only the payloads that failed, unchanged."""
    return None
