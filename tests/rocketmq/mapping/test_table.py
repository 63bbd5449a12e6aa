"""The column "listener" of the field table says what the round trip of an SDK's message does."""

import pytest

from mqbridge.mapping.field_table import ACTED_ON, IF_SENT, KEPT, LEFT_OUT, SET, map_fields
from mqbridge.message import Message, Unit
from mqbridge.pulsar.mapping.table import TABLE as PULSAR
from mqbridge.rocketmq.mapping.sdk_units import message_of_unit, unit_of_message
from mqbridge.rocketmq.mapping.table import RECORD_FIELDS, RESERVED_PROPERTIES, SYSTEM_PROPERTIES, TABLE
from mqbridge.rocketmq.wire.neutral_record import neutral_records
from mqbridge.rocketmq.wire.properties import EFFECTIVE_NAMES, Name, decode
from mqbridge.rocketmq.wire.record import NO_HOST, Record, SysFlag, decode_records, encode_record
from mqbridge.tubemq.mapping.table import TABLE as TUBEMQ

RULES = {rule.native: rule for rule in TABLE.rules}
PROPERTIES = [rule.native for rule in (*SYSTEM_PROPERTIES, *RESERVED_PROPERTIES) if rule.native]


def name_of(native: str) -> str:
    """Return a name of the pattern: `mqbridge.x.N.*` becomes `mqbridge.x.7.name`."""
    return native.replace(".N.", ".7.").replace("*", "name")


def round_trip(record: Record) -> Record:
    """Return what an SDK gets of a record that another SDK sent, through messages of a backing without units."""
    [neutral] = neutral_records(encode_record(record))
    [given_back] = decode_records(unit_of_message(message_of_unit(Unit(neutral.data, 1, None))).data)
    return given_back


@pytest.mark.parametrize("native", PROPERTIES)
@pytest.mark.parametrize("value", ["1", "text"])
def test_what_an_sdk_gets_of_a_property_that_an_sdk_sent(native: str, value: str) -> None:
    name = name_of(native)
    record = Record("T", b"\x00", f"a\x011\x02{name}\x01{value}\x02b\x012\x02".encode())
    is_left_out = RULES[native].listener is LEFT_OUT
    assert is_left_out or RULES[native].listener in {KEPT, ACTED_ON, IF_SENT}
    given_back = decode(round_trip(record).properties)
    assert given_back == [("a", "1"), *([] if is_left_out else [(name, value)]), ("b", "2")]


@pytest.mark.parametrize("native", [rule.native for rule in RESERVED_PROPERTIES if rule.native])
def test_an_sdk_gets_no_property_that_a_gateway_wrote(native: str) -> None:
    assert RULES[native].listener is IF_SENT
    unit = unit_of_message(Message(b"\x00", (("a", "1"), (name_of(native), "1"))))
    [record] = decode_records(unit.data)
    assert decode(record.properties) == [("a", "1")]


def test_what_an_sdk_gets_of_the_fields_of_a_record() -> None:
    record = Record(
        "T",
        b"body",
        b"a\x011\x02",
        queue_id=1,
        queue_offset=2,
        physical_offset=3,
        flag=4,
        sys_flag=SysFlag.COMMIT,
        born_timestamp=5,
        born_host=bytes(range(8)),
        store_timestamp=6,
        store_host=bytes(range(8)),
        reconsume_times=7,
        prepared_offset=8,
    )
    after = round_trip(record)
    attributes = {
        "QUEUEID": "queue_id",
        "FLAG": "flag",
        "QUEUEOFFSET": "queue_offset",
        "PHYSICALOFFSET": "physical_offset",
        "SYSFLAG": "sys_flag",
        "BORNTIMESTAMP": "born_timestamp",
        "BORNHOST": "born_host",
        "STORETIMESTAMP": "store_timestamp",
        "STOREHOST": "store_host",
        "RECONSUMETIMES": "reconsume_times",
        "PREPAREDTRANSACTIONOFFSET": "prepared_offset",
        "BODY": "body",
        "TOPIC": "topic",
        "PROPERTIES": "properties",
    }
    assert {*attributes, "TOTALSIZE", "MAGIC", "BODYCRC"} == {rule.native for rule in RECORD_FIELDS}
    assert {RULES[native].listener for native in ("TOTALSIZE", "MAGIC", "BODYCRC")} == {SET}
    for native, attribute in attributes.items():
        given_back = getattr(after, attribute)
        if RULES[native].listener is KEPT:
            assert given_back == getattr(record, attribute), native
        else:
            assert given_back in (0, "", NO_HOST), native
            assert RULES[native].listener in {SET, LEFT_OUT}


def test_a_listener_acts_on_what_a_broker_acts_on() -> None:
    acted_on = {rule.native for rule in TABLE.rules if rule.listener is ACTED_ON}
    assert acted_on <= {*EFFECTIVE_NAMES, Name.PGROUP}
    assert {Name.DELAY, Name.TIMER_DELIVER_MS, Name.TRAN_MSG} <= acted_on


def test_every_field_says_what_an_sdk_gets() -> None:
    assert [rule for rule in TABLE.rules if rule.native and rule.listener is None] == []
    assert TABLE.listener
    assert PULSAR.listener, "its units pass as they are"
    assert [rule for rule in PULSAR.rules if rule.listener] == []


def test_a_mapping_to_another_system_says_what_an_sdk_of_the_source_gets() -> None:
    for step in map_fields(TABLE, TUBEMQ):
        assert step.listener is RULES[step.source].listener
    assert all(step.listener is None for step in map_fields(PULSAR, TABLE))
