"""The column "listener" of the field table says what the round trip of an SDK's message does."""

import pytest

from mqbridge.mapping.field_table import ACTED_ON, IF_SENT, KEPT, LEFT_OUT, SET, map_fields
from mqbridge.message import Message
from mqbridge.pulsar.mapping.table import TABLE as PULSAR
from mqbridge.tubemq.mapping.properties import parse_pairs
from mqbridge.tubemq.mapping.sdk_units import message_of_unit, unit_of_message
from mqbridge.tubemq.mapping.table import ATTRIBUTES, NOT_READABLE, REQUEST, RESERVED, TABLE, TRANSFERED
from mqbridge.tubemq.mapping.unit_format import split_unit, unit_of_data
from mqbridge.tubemq.wire.payload import join_payload, split_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import SendMessageRequestP2B, TransferedMessage

RULES = {rule.native: rule for rule in TABLE.rules}


def name_of(native: str) -> str:
    """Return a name of the pattern: `mqbridge.u.*` becomes `mqbridge.u.name`."""
    return native.replace("*", "name")


@pytest.mark.parametrize("native", [rule.native for rule in RESERVED])
@pytest.mark.parametrize("value", ["1", "text"])
def test_an_sdk_gets_an_attribute_of_a_gateway_only_if_an_sdk_sent_it(native: str, value: str) -> None:
    assert RULES[native].listener is IF_SENT
    name = name_of(native)
    original = unit_of_data(*join_payload(f"a=1,{name}={value},b=2,{name}={value}".encode(), b""))
    assert unit_of_message(message_of_unit(original)) == original
    flag, data = split_unit(unit_of_message(Message(b"x", (("a", "1"), (name, value)))).data)
    attributes, _ = split_payload(data, flag)
    assert parse_pairs(attributes or b"") == (("a", "1"),)


@pytest.mark.parametrize("native", [rule.native for rule in ATTRIBUTES])
def test_an_sdk_gets_all_attributes_that_an_sdk_sent(native: str) -> None:
    assert RULES[native].listener is (SET if RULES[native].field == "position" else KEPT)


def test_every_field_on_the_wire_says_what_an_sdk_gets() -> None:
    for rules, kind in ((REQUEST, SendMessageRequestP2B), (TRANSFERED, TransferedMessage)):
        name = kind.DESCRIPTOR.name
        assert [rule.native for rule in rules] == [f"{name}.{field.name}" for field in kind.DESCRIPTOR.fields]
    assert {rule.native for rule in TABLE.rules if rule.listener is LEFT_OUT} == {
        f"SendMessageRequestP2B.{name}" for name in ("clientId", "sentAddr", "msgType", "msgTime", "authInfo")
    }
    assert {rule.native for rule in TABLE.rules if rule.listener is ACTED_ON} == {
        f"SendMessageRequestP2B.{name}" for name in ("topicName", "partitionId", "checkSum")
    }
    assert RULES["TransferedMessage.payLoadData"].listener is RULES["TransferedMessage.flag"].listener is KEPT


def test_every_field_says_what_an_sdk_gets() -> None:
    assert TABLE.listener
    assert {rule.native for rule in TABLE.rules if rule.listener is None} == {rule.native for rule in NOT_READABLE} == {""}


def test_a_mapping_to_another_system_says_what_an_sdk_of_the_source_gets() -> None:
    for step in map_fields(TABLE, PULSAR):
        assert step.listener is RULES[step.source].listener
