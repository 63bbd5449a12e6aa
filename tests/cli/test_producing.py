"""`mqbridge produce`: how input and options become messages."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from mqbridge.cli.producing import read_input
from mqbridge.cli.producing.parse_message import MessageBuilder
from mqbridge.errors import ConfigError
from mqbridge.testing.memory.broker import delete_broker, get_broker
from tests.cli.conftest import Invoke, lines


def consume_all(invoke: Invoke, orders: list[Any]) -> list[Any]:
    return lines(invoke("consume", "-t", "orders", *orders, "-e", "--json").out)


def test_every_field(invoke: Invoke, orders: list[Any]) -> None:
    form = ["--ordering-key", "o", "--index-key", "i", "--index-key", "j", "--event-time", "2023-11-14T22:13:20.123Z", "-k", "k"]
    assert invoke("produce", "-t", "orders", *form, *orders, stdin=b"x").code == 0
    (one,) = consume_all(invoke, orders)
    assert {name: one[name] for name in ("ordering_key", "keys", "event_time", "key")} == {
        "ordering_key": "o",
        "keys": ["i", "j"],
        "event_time": 1_700_000_000_123,
        "key": "k",
    }
    fields = invoke("consume", "-t", "orders", "-e", "-f", "%y %i %D %n %T", *orders).out
    assert fields == "o i,j  0 1700000000123"


def test_an_ordering_key_keeps_messages_together(invoke: Invoke, orders: list[Any]) -> None:
    for number in range(6):
        invoke("produce", "-t", "orders", "--ordering-key", "same", *orders, stdin=b"%d" % number)
    assert len({one["partition"] for one in consume_all(invoke, orders)}) == 1


def test_partition_by_name(invoke: Invoke, orders: list[Any]) -> None:
    assert invoke("produce", "-t", "orders", "-p", "2", *orders, stdin=b"x").code == 0
    assert [one["partition"] for one in consume_all(invoke, orders)] == ["2"]


@pytest.mark.parametrize(
    ("delimiter", "stdin"), [(r"\0", b"a\nb\x00\xff\x00"), ("--", b"a\nb--\xff--"), (r"\r\n", b"a\nb\r\n\xff")]
)
def test_other_delimiters(invoke: Invoke, orders: list[Any], delimiter: str, stdin: bytes) -> None:
    assert invoke("produce", "-t", "orders", "-p", 0, "-D", delimiter, *orders, stdin=stdin).code == 0
    assert [one.get("payload", one.get("payload_base64")) for one in consume_all(invoke, orders)] == ["a\nb", "/w=="]


def test_standard_input_as_one_message(invoke: Invoke, orders: list[Any]) -> None:
    payload = bytes(range(256)) * 2000
    assert invoke("produce", "-t", "orders", "-p", 0, "-", *orders, stdin=payload).code == 0
    out = invoke("consume", "-t", "orders", "-e", "-f", "%S", *orders).out
    assert out == str(len(payload))


def test_json_lines(invoke: Invoke, orders: list[Any]) -> None:
    objects: list[dict[str, Any]] = [
        {"payload": "plain"},
        {"payload": None, "key": "gone"},
        {"payload_base64": "AP8=", "key_base64": "/w==", "properties": [["a", "1"], ["a", "2"]]},
        {
            "payload": "x",
            "properties": {"b": "3"},
            "topic": "other",
            "partition": "9",
            "position": "12",
            "origin": "o",
            "hops": 3,
        },
    ]
    stdin = b"\n".join(orjson.dumps(one) for one in objects) + b"\n\n"
    assert invoke("produce", "-t", "orders", "-p", 1, "-T", "paid", "--from-json", *orders, stdin=stdin).code == 0
    found = consume_all(invoke, orders)
    assert [one.get("payload", one.get("payload_base64")) for one in found] == ["plain", None, "AP8=", "x"]
    assert {one["msg_type"] for one in found} == {"paid"}
    assert (found[1]["key"], found[2]["key_base64"]) == ("gone", "/w==")
    assert [one.get("properties") for one in found[2:]] == [[["a", "1"], ["a", "2"]], [["b", "3"]]]
    assert {(one["topic"], one["partition"]) for one in found} == {("orders", "1")}
    assert "origin" not in found[3]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"hello", "is not JSON"),
        (b"[1]", "is not an object"),
        (b'{"paylaod": "x"}', "has 'paylaod': \"x\", which is not a field of a message, or not of its type"),
        (b'{"payload": 5}', "has 'payload': 5"),
        (b'{"payload_base64": "?"}', "has an invalid 'payload'"),
        (b'{"msg_type_base64": "eA=="}', "has 'msg_type_base64', but 'msg_type' is not a field with bytes"),
        (b'{"event_time": "now"}', "has 'event_time': \"now\""),
        (b'{"properties": ["x"]}', "has an invalid 'properties'"),
        (b'{"payload": NaN}', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xb4", "is not JSON"),
    ],
)
def test_wrong_json_is_reported_with_the_count_stored_before(
    invoke: Invoke, orders: list[Any], line: bytes, expected: str
) -> None:
    answer = invoke("produce", "-t", "orders", "--from-json", *orders, stdin=line)
    assert answer.code == 2
    assert expected in answer.err
    assert "0 messages were stored in orders before the error" in answer.err


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ('{"properties": {"a": null}}', "null is not a text"),
        ('{"properties": {"a": 5}}', "5 is not a text"),
        ('{"properties": {"a": true}}', "true is not a text"),
        ('{"properties": {"a": {"b": "c"}}}', '{"b": "c"} is not a text'),
        ('{"properties": [["a", null]]}', "null is not a text"),
        ('{"properties": ["ab"]}', '"ab" is not a pair of a name and a value'),
        ('{"properties": "ab"}', '"a" is not a pair of a name and a value'),
        ('{"properties": null}', "has an invalid 'properties'"),
        ('{"properties": {"a": "b", "a": "c"}}', "'a' occurs twice in an object"),
        ('{"key": "a", "key": "b"}', "'key' occurs twice in an object"),
        ('{"key": "a", "key_base64": "YQ=="}', "has both 'key' and 'key_base64'"),
        ('{"key": null}', "has 'key': null"),
        ('{"keys": ["a", 1]}', "1 is not a text"),
        ('{"payload": true}', "has 'payload': true"),
        ('{"payload": {"a": 1}}', "has 'payload': {\"a\": 1}"),
        ('{"payload_base64": 5}', "has an invalid 'payload'"),
        ('{"event_time": -1}', "-1 is not a time in ms since 1970"),
        ('{"event_time": 99999999999999999999}', "99999999999999999999 is not a time"),
        ('{"event_time": 1.5}', "has 'event_time': 1.5"),
        ('{"deliver_at": true}', "has 'deliver_at': true"),
        ('{"event_time": ' + "9" * 300 + "}", "has 'event_time': 1e+300"),
        ('{"payload": ' + '{"a":' * 1000 + "1" + "}" * 1001, ""),
        ('{"a": null}', "has 'a': null, which is not a field of a message"),
    ],
)
def test_a_json_value_of_another_type_is_refused(record: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MessageBuilder(from_json=True).make_message(record.encode())
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 400


def test_deliver_at_is_rejected_by_a_system_without_delays(invoke: Invoke, orders: list[Any]) -> None:
    answer = invoke("produce", "-t", "orders", "--deliver-at", "now+30s", *orders, stdin=b"x")
    assert answer.code == 2
    assert "cannot delay messages. Send them without --deliver-at" in answer.err
    assert consume_all(invoke, orders) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--deliver-at", "soon"], "--deliver-at 'soon' is not a time. Write now+30s"),
        (["--event-time", "5"], "--event-time '5' is not a time"),
        (["-D", ""], "-D is empty"),
        (["-X", "novalue"], "-X 'novalue' is not a setting. Write NAME=VALUE"),
        (["-X", "compresion=lz4"], "-X compresion: there is no such setting. Known: none"),
        (["--rate", "0"], "0.001"),
    ],
)
def test_wrong_options_are_reported_with_a_hint(invoke: Invoke, orders: list[Any], arguments: list[str], expected: str) -> None:
    answer = invoke("produce", "-t", "orders", *arguments, *orders, stdin=b"x")
    assert answer.code == 2
    assert expected in answer.err


def test_settings_are_checked_by_their_system(invoke: Invoke) -> None:
    at = ["--at", "pulsar://127.0.0.1:1"]
    unknown = invoke("produce", "-t", "t", "-X", "compresion=lz4", *at)
    assert (unknown.code, "Known: compression, " in unknown.err) == (2, True)
    wrong = invoke("consume", "-t", "t", "-X", "batch_bytes=tiny", *at)
    assert (wrong.code, "-X batch_bytes: " in wrong.err) == (2, True)


def test_a_rate_limits_sending(invoke: Invoke, orders: list[Any]) -> None:
    began = time.monotonic()
    assert invoke("produce", "-t", "orders", "--rate", 200, "-n", 60, *orders, stdin=b"x").code == 0
    assert len(consume_all(invoke, orders)) == 60
    assert (
        time.monotonic() - began > 0.2
    )  # 60 messages at 200 per second take about 0.3 s; on a busy machine it only takes longer


def test_a_timeout_ends_produce_and_names_the_cause(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.cli.commands.produce.PROGRESS_S", 0.2)
    file = tmp_path / "one.yaml"
    file.write_text(f"clusters: {{only: {{system: memory, broker: '{tmp_path}'}}}}")
    assert invoke("topics", "orders", "--create", 1, "-F", file).code == 0
    broker = get_broker(str(tmp_path))
    broker.faults.transient, broker.faults.transient_error = 1_000_000_000, "the disk is full"
    answer = invoke("produce", "-t", "orders", "--timeout", 1, "-F", file, stdin=b"1\n2\n")
    assert answer.code == 3
    notes = answer.err.splitlines()
    assert notes[0] == "0 messages stored in orders, 2 are sent and wait; sends fail and are retried: the disk is full"
    assert "nothing was stored in 'orders' for 1 s; sends fail and are retried: the disk is full" in notes[-1]
    broker.faults.transient = 0
    assert invoke("produce", "-t", "orders", "--timeout", 1, "-F", file, stdin=b"3\n").code == 0
    delete_broker(str(tmp_path))


def test_consume_filters_by_message_type(invoke: Invoke, orders: list[Any]) -> None:
    for msg_type in ("paid", "sent", "lost"):
        invoke("produce", "-t", "orders", "-T", msg_type, *orders, stdin=msg_type.encode())
    out = invoke("consume", "-t", "orders", "-T", "paid", "-T", "lost", "-e", *orders).out
    assert sorted(out.split()) == ["lost", "paid"]


def test_a_record_that_is_too_large_is_rejected(
    invoke: Invoke, orders: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(read_input, "MAX_RECORD_BYTES", 100)
    (tmp_path / "large").write_bytes(b"x" * 101)
    whole = invoke("produce", "-t", "orders", tmp_path / "large", *orders)
    assert (whole.code, "is larger than 100 bytes. Send its lines with -l" in whole.err) == (2, True)
    line = invoke("produce", "-t", "orders", "-l", tmp_path / "large", *orders)
    assert (line.code, "is larger than 100 bytes. Set the text between records with -D" in line.err) == (2, True)


def test_fields_of_a_json_object_override_the_command_line() -> None:
    builder = MessageBuilder(key="k", msg_type="t", from_json=True)
    message = builder.make_message(b'{"payload": "x", "key": "other"}')
    assert (message.payload, message.key, message.msg_type) == (b"x", "other", "t")
    with pytest.raises(ConfigError):
        builder.make_message(b'{"defect": "x"}')


async def test_unreadable_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=SimpleNamespace(fileno=lambda: folder)))
    try:
        with pytest.raises(ConfigError, match="standard input cannot be read: Is a directory"):
            await anext(read_input.split_records([], b"\n"))
    finally:
        os.close(folder)
