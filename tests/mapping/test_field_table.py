"""The mapping tables have a row for every field, and the mappings follow the rows."""

from pathlib import Path

import pytest

import mqbridge
from mqbridge.adapter.registry import load_adapters
from mqbridge.mapping.field_table import CARRIED, DROPPED, NATIVE, RECOMPUTED, map_fields
from mqbridge.message import Message
from mqbridge.pulsar.mapping import table as pulsar
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from mqbridge.rocketmq.mapping import table as rocketmq
from mqbridge.rocketmq.wire.properties import SYSTEM_NAMES
from mqbridge.tubemq.mapping import table as tubemq
from mqbridge.tubemq.wire.pb.broker_pb2 import SendMessageRequestP2B, TransferedMessage
from tools import mapping_page

ADAPTERS = load_adapters()
SYSTEMS = sorted(ADAPTERS)
FULL = Message(
    b"body",
    (("a", "1"), ("tag", "x")),
    key="k",
    ordering_key=b"\x01",
    keys=("k", "l"),
    msg_type="t",
    attributes=b"free,text",
    event_time=1_700_000_000_123,
    deliver_at=5,
    origin="c|t|0|1",
    hops=2,
    position=(7,),
)


def native_names(kind: type) -> set[str]:
    return {f"{kind.DESCRIPTOR.name}.{field.name}" for field in kind.DESCRIPTOR.fields}  # type: ignore[attr-defined]


def test_there_is_a_table_for_every_system() -> None:
    package = Path(mqbridge.__file__).parent
    folders = [*package.glob("*/adapter"), *package.glob("testing/*/adapter")]
    assert sorted(folder.parent.name for folder in folders) == SYSTEMS


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_field_of_the_message_has_a_row(system: str) -> None:
    table = ADAPTERS[system].table
    assert {row.field for row in table.rules} - {None} == set(Message.__slots__)
    assert all(row.why for row in table.rules)
    named = [row.native for row in table.rules if row.native]
    assert len(named) == len(set(named)), "a native field has one row"


@pytest.mark.parametrize("system", SYSTEMS)
def test_carried_fields_have_no_native_field(system: str) -> None:
    for row in ADAPTERS[system].table.rules:
        assert row.field is not None or row.fate is not NATIVE, row
        assert row.field is None or row.field == "defect" or row.fate is not DROPPED, row
        assert row.fate is not CARRIED or row.native.startswith("mqbridge.") or row.own, row


def test_every_pulsar_field_has_a_row() -> None:
    named = {row.native for row in (*pulsar.MESSAGE_METADATA, *pulsar.SINGLE_MESSAGE_METADATA)}
    later = {row.native for row in pulsar.METADATA_SINCE_5}
    known = native_names(MessageMetadata) | native_names(SingleMessageMetadata)
    assert known <= named | later
    assert named <= known


def test_every_tubemq_field_has_a_row() -> None:
    assert {row.native for row in tubemq.REQUEST} == native_names(SendMessageRequestP2B)
    assert {row.native for row in tubemq.TRANSFERED} == native_names(TransferedMessage)


def test_every_rocketmq_property_has_a_row() -> None:
    assert {row.native for row in rocketmq.SYSTEM_PROPERTIES} == SYSTEM_NAMES | {"__RMQ.TRANSIENT.*"}
    fields = (
        "TOTALSIZE MAGIC BODYCRC QUEUEID FLAG QUEUEOFFSET PHYSICALOFFSET SYSFLAG BORNTIMESTAMP BORNHOST STORETIMESTAMP STOREHOST"
    )
    others = "RECONSUMETIMES PREPAREDTRANSACTIONOFFSET BODY TOPIC PROPERTIES"
    assert [row.native for row in rocketmq.RECORD_FIELDS] == f"{fields} {others}".split()


@pytest.mark.parametrize("system", SYSTEMS)
def test_written_reserved_names_have_a_carried_row(system: str) -> None:
    """The reserved names in a full message are among the carried rows."""
    written = {
        name.removeprefix("property ").removeprefix("attribute ") for name, _ in ADAPTERS[system].preview(FULL, "c|t|0|", 10)
    }
    ours = {name for name in written if name.startswith("mqbridge.")}
    assert ours <= ADAPTERS[system].table.native_names(CARRIED)
    recomputed = ADAPTERS[system].table.native_names(RECOMPUTED, DROPPED)
    assert not recomputed & written - {"position", "publish_time"}
    carried = {f"mqbridge.{field}" for field in ADAPTERS[system].table.carried_fields()}
    assert carried <= ours


@pytest.mark.parametrize("first", SYSTEMS)
@pytest.mark.parametrize("second", SYSTEMS)
def test_a_direction_maps_every_field(first: str, second: str) -> None:
    steps = map_fields(ADAPTERS[first].table, ADAPTERS[second].table)
    own = {
        row.native for row in ADAPTERS[first].table.rules if row.native and not (row.native.startswith("mqbridge.") and row.field)
    }
    assert {step.source for step in steps} == own
    for step in steps:
        assert bool(step.target) == (step.fate in {NATIVE, CARRIED} and step.field is not None), step


def test_the_mapping_page_is_current() -> None:
    assert mapping_page.main(["--check"]) == 0
