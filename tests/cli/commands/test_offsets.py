"""`mqbridge offsets`: the bounds of partitions, positions of groups, and moving groups."""

import time
from typing import Any

import pytest

from mqbridge.adapter.topics import Bounds
from mqbridge.cli.group_state.reset import describe_change
from mqbridge.message import Position
from tests.cli.conftest import Invoke


@pytest.fixture
def filled(invoke: Invoke, orders: list[Any]) -> list[Any]:
    """Store five messages in partition 0 and three in partition 1; group `g` reads all of them. Return the cluster's options."""
    for partition, count in ((0, 5), (1, 3)):
        stdin = b"".join(b"%d-%d\n" % (partition, number) for number in range(count))
        invoke("produce", "-t", "orders", "-p", partition, *orders, stdin=stdin)
    assert invoke("consume", "-t", "orders", "-G", "g", "-e", *orders).code == 0
    return orders


def committed(invoke: Invoke, orders: list[Any], group: str = "g") -> dict[str, Any]:
    answer = invoke("offsets", "orders", "-G", group, "--json", *orders).json
    return {one["partition"]: one["committed"] for one in answer["partitions"]}


def consumed(invoke: Invoke, orders: list[Any], *options: object) -> list[str]:
    return sorted(invoke("consume", "-t", "orders", "-G", "g", "-e", *options, *orders).out.split())


def test_offsets_show_the_bounds(invoke: Invoke, filled: list[Any]) -> None:
    answer = invoke("offsets", "orders", "--json", *filled).json
    assert (answer["topic"], answer["messages"]) == ("orders", 8)
    assert answer["partitions"][0] == {"partition": "0", "first": "0", "next": "5", "messages": 5}
    table = [line.split() for line in invoke("offsets", "orders", *filled).out.splitlines()]
    assert table == [
        ["partition", "first", "next", "messages"],
        ["0", "0", "5", "5"],
        ["1", "0", "3", "3"],
        ["2", "0", "0", "0"],
        ["total", "8"],
    ]


def test_offsets_show_a_group(invoke: Invoke, filled: list[Any]) -> None:
    invoke("produce", "-t", "orders", "-p", 1, *filled, stdin=b"more\nmore\n")
    answer = invoke("offsets", "orders", "-G", "g", "--json", *filled).json
    assert (answer["group"], answer["lag"], answer["lag_unit"]) == ("g", 2, "messages")
    assert answer["partitions"][1] == {
        "partition": "1",
        "first": "0",
        "next": "5",
        "messages": 5,
        "committed": "3",
        "lag": 2,
        "at_end": False,
    }
    single = invoke("offsets", "orders", "-G", "g", "-p", 1, *filled)
    assert [line.split() for line in single.out.splitlines()][1:] == [["1", "0", "5", "5", "3", "2"]]
    nobody = invoke("offsets", "orders", "-G", "nobody", *filled)
    assert (nobody.code, nobody.err) == (0, "group nobody has no position in orders\n")


def test_a_group_is_moved_to_the_beginning(invoke: Invoke, filled: list[Any]) -> None:
    answer = invoke("offsets", "orders", "-G", "g", "--reset", "earliest", "--yes", "--json", *filled)
    assert answer.code == 0
    assert answer.json == {
        "topic": "orders",
        "group": "g",
        "moved": True,
        "partitions": [
            {"partition": "0", "committed": "5", "to": "0"},
            {"partition": "1", "committed": "3", "to": "0"},
            {"partition": "2", "committed": "0", "to": "0"},
        ],
    }
    assert committed(invoke, filled) == {"0": "0", "1": "0", "2": "0"}
    assert consumed(invoke, filled) == ["0-0", "0-1", "0-2", "0-3", "0-4", "1-0", "1-1", "1-2"]


def test_a_group_is_moved_to_a_position_of_one_partition(invoke: Invoke, filled: list[Any]) -> None:
    assert invoke("offsets", "orders", "-G", "g", "--reset", "3", "-p", 0, "--yes", *filled).code == 0
    assert committed(invoke, filled) == {"0": "3", "1": "3", "2": "0"}
    assert consumed(invoke, filled) == ["0-3", "0-4"]


def test_a_group_is_moved_to_the_end(invoke: Invoke, filled: list[Any]) -> None:
    invoke("offsets", "orders", "-G", "g", "--reset", "earliest", "--yes", *filled)
    assert invoke("offsets", "orders", "-G", "g", "--reset", "latest", "-p", 0, "--yes", *filled).code == 0
    assert consumed(invoke, filled) == ["1-0", "1-1", "1-2"]


def test_a_group_is_moved_to_a_time(invoke: Invoke, filled: list[Any]) -> None:
    time.sleep(0.05)
    between = time.time_ns() // 1_000_000
    time.sleep(0.05)
    invoke("produce", "-t", "orders", "-p", 0, *filled, stdin=b"late\n")
    consumed(invoke, filled)
    answer = invoke("offsets", "orders", "-G", "g", "--reset", f"@{between}", "--yes", *filled)
    if answer.code == 3:
        assert "use earliest, latest or a position" in answer.err  # the system `memory` stores no times
    else:
        assert consumed(invoke, filled) == ["late"]


def test_a_dry_run_moves_nothing(invoke: Invoke, filled: list[Any]) -> None:
    before = committed(invoke, filled)
    answer = invoke("offsets", "orders", "-G", "g", "--reset", "earliest", "--dry-run", *filled)
    assert answer.code == 0
    assert [line.split() for line in answer.out.splitlines()][1:] == [
        ["0", "5", "0", "-5"],
        ["1", "3", "0", "-3"],
        ["2", "0", "0", "none"],
    ]
    assert answer.err == "group g would be moved in 3 partitions of orders\n"
    assert (
        invoke("offsets", "orders", "-G", "g", "--reset", "earliest", "--dry-run", "--yes", "--json", *filled).json["moved"]
        is False
    )
    unsure = invoke("offsets", "orders", "-G", "g", "--reset", "earliest", *filled)
    assert unsure.code == 2
    assert "nothing was moved. Add --yes to move it" in unsure.err
    assert committed(invoke, filled) == before


def test_a_misspelt_group_is_not_created(invoke: Invoke, filled: list[Any]) -> None:
    answer = invoke("offsets", "orders", "-G", "gg", "--reset", "latest", "--yes", *filled)
    assert answer.code == 2
    assert answer.err == "error: topic 'orders' has no group 'gg'. It has g; --create makes a new one\n"
    assert invoke("offsets", "orders", "-G", "gg", "--reset", "latest", "--yes", "--create", *filled).code == 0
    assert committed(invoke, filled, "gg") == {"0": "5", "1": "3", "2": "0"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--reset", "earliest", "--yes"], "--reset moves a group, and no group is given. Name it with -G"),
        (["-G", "g", "--yes"], "--yes, --dry-run and --create need --reset. Give the new position"),
        (["-G", "g", "--reset", "noon"], "--reset 'noon' is neither a position nor a time. Use earliest, latest"),
        (["-G", "g", "--reset", "1", "--yes"], "the position 1 needs one partition. Name it with -p"),
        (["-G", "g", "--reset", "99", "-p", 0, "--yes"], "partition 0 has no position 99. It holds 0 up to 5"),
        (["-p", 5], "'orders' has no partition 5. It has 0, 1, 2"),
    ],
)
def test_wrong_options_are_reported_with_a_hint(
    invoke: Invoke, filled: list[Any], arguments: list[object], expected: str
) -> None:
    answer = invoke("offsets", "orders", *arguments, *filled)
    assert (answer.code, answer.out) == (2, "")
    assert expected in answer.err


def test_a_cluster_that_cannot_move_groups_reports_the_missing_setting(
    invoke: Invoke, filled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqbridge.log.adapter.cluster import LogCluster

    if "log" not in filled[1].read_text():
        pytest.skip("the message is the same for every system")
    monkeypatch.setattr(LogCluster, "operations", None)
    answer = invoke("offsets", "orders", "-G", "g", "--reset", "latest", "--yes", *filled)
    assert answer.code == 3
    assert "give its admin_url" in answer.err


@pytest.mark.parametrize(
    ("before", "after", "first", "next_", "shown"),
    [
        ((5,), (2,), (0,), (9,), "-3"),
        ((5,), (5,), (0,), (9,), "none"),
        ((7, 3, 0), (7, 0, 0), (7, 0, 0), (7, 5, 0), "back"),
        ((7, 3, 0), (7, 5, 0), (7, 0, 0), (7, 5, 0), "forward"),
        # In an empty partition, Pulsar reports position -1:-1 as the end, and a position in a real ledger for a subscription.
        ((11, 0, 0), (-1, -1, 0), (-1, -1, 0), (-1, -1, 0), "none"),
        (None, (0,), (0,), (9,), "new"),
    ],
)
def test_a_move_is_described(before: Position | None, after: Position, first: Position, next_: Position, shown: str) -> None:
    assert describe_change(before, after, Bounds(first, next_)) == shown
