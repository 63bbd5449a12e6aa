"""Count words and write the counts to a topic, with a custom serializer and deserializer."""

import json
import re

from running import run

from mqbridge.spark.streams import KeyValueDeserializer, KeyValueSerializer, Pair, StreamBuilder, StreamConfig, Topology

PROPERTIES = {StreamConfig.SKIP_DATA_ERROR: True}


class WordCountSerializer(KeyValueSerializer):
    """Writes each count as a JSON object."""

    def serialize(self, key: str, data: int) -> bytes:
        """Return the payload for a word and its count."""
        return json.dumps({key: data}).encode()


class LineDeserializer(KeyValueDeserializer):
    """Reads lines of text, without a key."""

    def deserialize(self, source: bytes) -> Pair:
        """Return the line as the value."""
        return Pair(None, source.decode())


def build() -> Topology:
    """Return the topology of the job."""
    builder = StreamBuilder("wordCountSink")
    (
        builder.source("sourceTopic", LineDeserializer())
        .flatMap(lambda value: re.findall(r"\w+", value.lower()))
        .keyBy(lambda value: value)
        .count()
        .sink("wordCountSink", WordCountSerializer())
    )
    return builder.build()


if __name__ == "__main__":
    run(build(), PROPERTIES)
