"""`mqbridge peek`: the messages that it selects, how it prints them, and that it moves no group."""

import time
from typing import Any

import pytest

from mqbridge.cli.output import preview
from mqbridge.cli.output.preview import MessageSelection
from mqbridge.errors import ClusterError
from mqbridge.message import Message, Partition
from tests.cli.conftest import Invoke, lines


def fill(invoke: Invoke, orders: list[Any], partition: int, *payloads: bytes) -> None:
    assert invoke("produce", "-t", "orders", "-p", partition, *orders, stdin=b"\n".join(payloads)).code == 0


def peeked(invoke: Invoke, orders: list[Any], *arguments: object) -> list[str]:
    answer = invoke("peek", "orders", *arguments, "--json", *orders)
    assert answer.code == 0, answer.err
    return [one["payload"] for one in lines(answer.out)]


def test_the_newest_of_a_partition(invoke: Invoke, orders: list[Any]) -> None:
    fill(invoke, orders, 1, *(b"%d" % number for number in range(2000)))
    assert peeked(invoke, orders, "--last", 3) == ["1997", "1998", "1999"]
    assert peeked(invoke, orders) == [str(number) for number in range(1990, 2000)]
    assert peeked(invoke, orders, "-p", 0) == []
    assert peeked(invoke, orders, "-p", 1, "-c", 1) == ["1999"]


def test_the_newest_of_all_partitions(invoke: Invoke, orders: list[Any]) -> None:
    for partition in range(3):
        fill(invoke, orders, partition, *(b"%d-%d" % (partition, number) for number in range(5)))
    assert sorted(peeked(invoke, orders, "-n", 3)) == ["0-4", "1-4", "2-4"]
    assert sorted(peeked(invoke, orders, "--first", "-c", 3)) == ["0-0", "1-0", "2-0"]
    assert len(peeked(invoke, orders, "-n", 100)) == 15


def test_peek_from_a_position_on(invoke: Invoke, orders: list[Any]) -> None:
    fill(invoke, orders, 0, *(bytes([97 + at]) for at in range(20)))
    assert peeked(invoke, orders, "--first", "-c", 2) == ["a", "b"]
    assert peeked(invoke, orders, "-o", 5, "-p", 0, "-c", 3) == ["f", "g", "h"]
    assert peeked(invoke, orders, "--at-position", "18", "-p", "0") == ["s", "t"]
    assert peeked(invoke, orders, "-o", "latest") == []
    assert peeked(invoke, orders, "-o", "earliest", "-c", 1) == ["a"]


def test_peek_from_a_time_on(invoke: Invoke, orders: list[Any]) -> None:
    fill(invoke, orders, 0, b"before")
    time.sleep(0.05)
    between = time.time_ns() // 1_000_000
    time.sleep(0.05)
    fill(invoke, orders, 0, b"after")
    answer = invoke("peek", "orders", "-o", f"@{between}", "--json", *orders)
    if answer.code == 3:
        assert "does not store the time of messages" in answer.err  # the system `memory` stores no times
    else:
        assert [one["payload"] for one in lines(answer.out)] == ["after"]


def test_peek_moves_no_group_and_leaves_none_behind(invoke: Invoke, orders: list[Any]) -> None:
    fill(invoke, orders, 0, b"a", b"b", b"c")
    invoke("consume", "-t", "orders", "-G", "g", "-c", 3, *orders)
    before = invoke("groups", "orders", "--json", *orders).json
    assert peeked(invoke, orders) == ["a", "b", "c"]
    peeked(invoke, orders, "--first")
    assert invoke("groups", "orders", "--json", *orders).json == before
    assert {row["group"] for row in before} == {"g"}


def test_messages_are_printed_with_escaped_control_characters(invoke: Invoke, orders: list[Any], tmp_path: Any) -> None:
    form = ["-k", "customer\x1b[31m", "-T", "paid", "-H", "lang=de\x07", "--event-time", "@1700000000123"]
    for name, payload in {
        "json": b'{"a":[1,{"b":1.10}]}',
        "binary": b"\x00\x01\xffABC",
        "evil": b"\x1b[2Jgone",
        "text": b"hi\nyou",
    }.items():
        (tmp_path / name).write_bytes(payload)
        assert invoke("produce", "-t", "orders", "-p", 0, *form, tmp_path / name, *orders).code == 0
    invoke("produce", "-t", "orders", "-p", 0, "-Z", *orders, stdin=b"\n")
    answer = invoke("peek", "orders", *orders)
    assert answer.code == 0
    assert "\x1b" not in answer.out
    assert "\x07" not in answer.out
    shown = answer.out
    for expected in (
        "orders [0] 0 2023-11-14 22:13:20.123Z",
        "customer\\x1b[31m",
        "property lang  de\\x07",
        "JSON, 20 bytes",
        '          "b": 1.10',
        "00000000  00 01 ff 41 42 43",
        "...ABC",
        "binary, 8 bytes",
        "    hi\n    you",
        "tombstone",
    ):
        assert expected in shown, expected


def test_long_payloads_are_cut(invoke: Invoke, orders: list[Any]) -> None:
    fill(invoke, orders, 0, b"x" * 5000)
    shown = invoke("peek", "orders", "--bytes", 10, *orders).out
    assert "    xxxxxxxxxx\n    … 4,990 more characters" in shown
    assert "text, 5,000 bytes" in shown
    assert peeked(invoke, orders) == ["x" * 5000]


def test_peeked_messages_can_be_produced_again(invoke: Invoke, orders: list[Any], tmp_path: Any) -> None:
    (tmp_path / "one").write_bytes(bytes(range(256)))
    form = ["-k", "k", "-T", "t", "-H", "a=1", "-H", "a=2", "--index-key", "i", "--ordering-key", "o", "--attributes", "x=y"]
    invoke("produce", "-t", "orders", "-p", 0, *form, "--event-time", "@5", tmp_path / "one", *orders)
    first = invoke("peek", "orders", "--json", *orders)
    assert invoke("produce", "-t", "orders", "-p", 2, "--from-json", *orders, stdin=first.out.encode()).code == 0
    (before,), (after,) = lines(first.out), lines(invoke("peek", "orders", "-p", 2, "--json", *orders).out)
    assert after == before | {"partition": "2", "position": "0"}
    assert before["payload_base64"]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--first", "-n", 2], 2, "exclude each other"),
        (["-n", 2, "-c", 2], 2, "--last and --count exclude each other"),
        (["-o", "5"], 2, "the position 5 needs one partition. Name it with -p"),
        (["-o", "5", "-p", 0], 2, "partition 0 has no position 5. It holds 0 up to 0"),
        (["-o", "1:2", "-p", 0], 2, "has no position 1:2"),
        (["-o", "teatime"], 2, "--at-position 'teatime' is neither a position nor a time"),
        (["-p", "7"], 2, "'orders' has no partition 7. It has 0, 1, 2"),
        (["-n", 100_000], 2, "--last"),
    ],
)
def test_wrong_options_are_reported_with_a_hint(
    invoke: Invoke, orders: list[Any], arguments: list[object], code: int, expected: str
) -> None:
    answer = invoke("peek", "orders", *arguments, *orders)
    assert (answer.code, answer.out) == (code, "")
    assert expected in answer.err


def test_an_empty_and_a_missing_topic(invoke: Invoke, orders: list[Any]) -> None:
    empty = invoke("peek", "orders", *orders)
    assert (empty.code, empty.out, empty.err) == (0, "", "orders has no messages in the selected range\n")
    missing = invoke("peek", "odrers", *orders)
    assert missing.code == 3
    assert "`mqbridge topics` lists them" in missing.err


def messages_with_times(partition: str, *times: int | None) -> tuple[Partition, list[Message]]:
    """Return a partition and one message for each time; payloads are the partition's name and a number: `a0`, `a1`."""
    return Partition("c", "t", partition, 0), [
        Message(f"{partition}{number}".encode(), publish_time=time) for number, time in enumerate(times)
    ]


def payloads(selection: MessageSelection) -> list[str]:
    return [(message.payload or b"").decode() for _, message in selection.select()]


def test_messages_are_selected_by_time_and_partitions_keep_their_order() -> None:
    newest = MessageSelection(3, newest=True)
    newest.add(*messages_with_times("a", 10, 50, 20))
    newest.add(*messages_with_times("b", 30, 40))
    assert payloads(newest) == ["a2", "b0", "b1"]  # a1 has the latest time, but a2 is the newest message of its partition
    oldest = MessageSelection(3, newest=False)
    oldest.add(*messages_with_times("a", 10, 50, 20))
    oldest.add(*messages_with_times("b", 30, 40))
    assert payloads(oldest) == ["a0", "b0", "b1"]


def test_without_times_messages_are_taken_from_the_partitions_round_robin() -> None:
    newest = MessageSelection(3, newest=True)
    newest.add(*messages_with_times("a", None, None, None))
    newest.add(*messages_with_times("b", 5, None))
    assert sorted(payloads(newest)) == ["a1", "a2", "b1"]


def test_the_size_of_collected_payloads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "MAX_HELD_BYTES", 10)
    selection = MessageSelection(5, newest=True)
    with pytest.raises(ClusterError, match="ask for fewer"):
        selection.add(Partition("c", "t", "0", 0), [Message(b"x" * 6), Message(b"x" * 6)])
