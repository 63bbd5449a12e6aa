"""Counts of words into a topic, with serializers of one's own."""

import json
import re

from running import run

from mqbridge.spark.streams import KeyValueDeserializer, KeyValueSerializer, Pair, StreamBuilder, StreamConfig, Topology

PROPERTIES = {StreamConfig.SKIP_DATA_ERROR: True}


class WordCountSerializer(KeyValueSerializer):
    """One JSON object per count."""

    def serialize(self, key: str, data: int) -> bytes:
        """Its payload."""
        return json.dumps({key: data}).encode()


class LineDeserializer(KeyValueDeserializer):
    """Lines of text, without key."""

    def deserialize(self, source: bytes) -> Pair:
        """The line."""
        return Pair(None, source.decode())


def build() -> Topology:
    """The topology of the job."""
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
