"""Schemas and topic lists."""

import pytest

from mqbridge.pulsar.wire import schemas
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.schemas import Schema, version_number
from mqbridge.pulsar.wire.topic_lists import parent_topics, topics_hash

PATTERN_TOPICS = [f"persistent://my-property/my-ns/pattern-topic-{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(("names", "hash_"), [([], "00000000"), (PATTERN_TOPICS[:1], "0d0602ed"), (PATTERN_TOPICS, "90d4a04a")])
def test_the_hash_of_a_topic_list_equals_the_brokers(names, hash_):
    assert topics_hash(reversed(names)) == hash_


def test_an_invalid_name_does_not_hide_the_others():
    names = ["persistent://a/b/one", "nonsense://a/b/c", "", "persistent://a/b/x-partition-" + "9" * 5000]
    assert parent_topics(names) == {"persistent://a/b/one", names[3]}


def test_parent_topics_replaces_partitions_by_their_topic():
    names = ["persistent://a/b/one-partition-0", "persistent://a/b/one-partition-1", "persistent://a/b/two", "persistent://a/b/x"]
    assert parent_topics(names) == {"persistent://a/b/one", "persistent://a/b/two", "persistent://a/b/x"}
    assert parent_topics(names, "a/b/(one|two)") == {"persistent://a/b/one", "persistent://a/b/two"}


def test_schemas_survive_the_wire():
    one = Schema(schemas.Types.Avro, b"{}", "name", (("k", "v"), ("k", "w")))
    assert Schema.from_wire(pb.Schema.FromString(one.to_wire().SerializeToString())) == one
    assert schemas.avro({"type": "string"}).definition == b'{"type": "string"}'
    assert schemas.json_record("{}").type == schemas.Types.Json
    assert schemas.STRING.to_wire().type == pb.Schema.String


def test_only_versions_of_8_bytes_have_a_number():
    assert [version_number(each) for each in (b"", bytes(8), bytes(7) + b"\x05", b"abc")] == [None, 0, 5, None]
