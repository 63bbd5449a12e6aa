"""`mqbridge groups`: who consumes a topic, and how far each has come."""

from typing import Annotated, Any

import typer

from mqbridge.adapter import Bounds, Cluster
from mqbridge.cli import loop
from mqbridge.cli.console import command, print_json, print_table
from mqbridge.cli.reach import Chosen, ClusterOption, ConfigOption, JsonOption, UrlOption, choose, no_topic
from mqbridge.message import Position, format_position


@command
def groups(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    group: Annotated[list[str] | None, typer.Option("--group", "-G", help="Only these groups.")] = None,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the groups of a topic with their committed positions and their lag per partition.

    The lag is in messages where positions count messages; elsewhere it only says whether the group is at the end.

    For example:

        mqbridge groups orders --at tubemq://127.0.0.1:8715

        mqbridge groups orders -G mqbridge -F gateway.yaml -b source --json
    """
    rows = loop.run(_groups(choose(config, cluster, at), topic, group))
    if as_json:
        print_json(rows)
        return
    columns = ["group", "partition", "committed", "next", "lag"]
    shown = [(*(row[column] for column in columns[:4]), _lag_text(row)) for row in rows]
    print_table(columns, shown, right=["committed", "next", "lag"])


async def _groups(chosen: Chosen, topic: str, only: list[str] | None) -> list[dict[str, Any]]:
    async with chosen.reached() as cluster:
        found = await cluster.describe(topic)
        if found is None:
            raise no_topic(topic, cluster)
        bounds = await cluster.bounds(topic)
        names = only or sorted(await cluster.groups(topic))
        return [row for name in names for row in await _of_group(cluster, topic, name, found.partitions, bounds)]


async def _of_group(cluster: Cluster, topic: str, group: str, partitions: tuple[str, ...], bounds: Any) -> list[dict[str, Any]]:
    committed = await cluster.committed(topic, group)
    return [_row(group, name, committed.get(name), bounds.get(name)) for name in partitions]


def _row(group: str, partition: str, committed: Position | None, bounds: Bounds | None) -> dict[str, Any]:
    known = committed is not None and bounds is not None
    return {
        "group": group,
        "partition": partition,
        "committed": None if committed is None else format_position(committed),
        "next": None if bounds is None else format_position(bounds.next),
        "lag": _lag(committed, bounds.next) if committed is not None and bounds is not None else None,
        "at_end": committed >= bounds.next if known and committed is not None and bounds is not None else None,
    }


def _lag(committed: Position, end: Position) -> int | None:
    """Messages between two positions; None where positions do not count messages (ledgers, packs)."""
    if committed >= end:
        return 0
    return end[0] - committed[0] if len(committed) == len(end) == 1 else None


def _lag_text(row: dict[str, Any]) -> str:
    if row["lag"] is not None:
        return f"{row['lag']:,}"
    return {None: "?", True: "0", False: "behind"}[row["at_end"]]
