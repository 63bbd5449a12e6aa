"""Schema definitions, and the lists of topics."""

import pytest

from mqbridge.pulsar.wire import schemas
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.schemas import Schema, version_number
from mqbridge.pulsar.wire.topic_lists import topics_hash, whole_topics

PATTERN_TOPICS = [f"persistent://my-property/my-ns/pattern-topic-{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(("names", "told"), [([], "00000000"), (PATTERN_TOPICS[:1], "0d0602ed"), (PATTERN_TOPICS, "90d4a04a")])
def test_the_hash_of_a_list_is_the_brokers(names, told):
    assert topics_hash(reversed(names)) == told


def test_partitions_are_told_as_their_topic():
    names = ["persistent://a/b/one-partition-0", "persistent://a/b/one-partition-1", "persistent://a/b/two", "persistent://a/b/x"]
    assert whole_topics(names) == {"persistent://a/b/one", "persistent://a/b/two", "persistent://a/b/x"}
    assert whole_topics(names, "a/b/(one|two)") == {"persistent://a/b/one", "persistent://a/b/two"}


def test_schemas_survive_the_wire():
    one = Schema(schemas.Types.Avro, b"{}", "name", (("k", "v"), ("k", "w")))
    assert Schema.from_wire(pb.Schema.FromString(one.to_wire().SerializeToString())) == one
    assert schemas.avro({"type": "string"}).definition == b'{"type": "string"}'
    assert schemas.json_record("{}").type == schemas.Types.Json
    assert schemas.STRING.to_wire().type == pb.Schema.String


def test_versions_are_numbers_where_they_look_like_one():
    assert [version_number(each) for each in (b"", bytes(8), bytes(7) + b"\x05", b"abc")] == [None, 0, 5, None]
