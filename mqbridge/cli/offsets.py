"""`mqbridge offsets`: where the partitions of a topic begin and end, where a group is in them, and moving it."""

from typing import Annotated, Any

import typer

from mqbridge.cli import loop, reset
from mqbridge.cli.console import command, print_json, print_table, say
from mqbridge.cli.places import HELP, parse_place, pick
from mqbridge.cli.reach import ClusterOption, ConfigOption, JsonOption, UrlOption, no_topic, operations_of
from mqbridge.cli.standing import Standing, lag_text, standing, text_of, total
from mqbridge.config.chosen import Chosen, choose
from mqbridge.errors import ConfigError


@command
def offsets(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    group: Annotated[str | None, typer.Option("--group", "-G", help="Also where this group is.")] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", help="Only this partition, by name or index; may be repeated.")
    ] = None,
    to: Annotated[str | None, typer.Option("--reset", metavar="PLACE", help=f"Move the group: to {HELP}.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what --reset would do.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Let --reset make a group that is not there yet.")] = False,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the first and next position of each partition, and with -G where a group is; or move that group.

    A group is moved while nobody consumes as it: stop its consumers first.

    For example:

        mqbridge offsets orders --at rocketmq://127.0.0.1:9876

        mqbridge offsets orders -G billing --reset now-2h --dry-run --at pulsar://127.0.0.1:6650

        mqbridge offsets orders -G billing --reset 1200 -p broker-a:0 --yes -F gateway.yaml -b source
    """
    chosen, partitions = choose(config, cluster, at), partition or []
    if to is None:
        if yes or dry_run or create:
            raise ConfigError("there is nothing to do", hint="Say where to with --reset PLACE")
        unit, rows = loop.run(_offsets(chosen, topic, group, partitions))
        _show(topic, group, unit, rows, as_json=as_json)
        return
    if group is None:
        raise ConfigError("--reset moves a group", hint="Name it with -G")
    wanted = reset.Wanted(topic, group, partitions, parse_place(to, "--reset"), create=create, do_it=yes and not dry_run)
    plan = loop.run(reset.reset(chosen, wanted))
    reset.show(plan, as_json=as_json)
    if not yes and not dry_run:
        raise ConfigError("nothing was moved", hint="Add --yes to do it, --dry-run to only look")


async def _offsets(chosen: Chosen, topic: str, group: str | None, partitions: list[str]) -> tuple[str, list[Standing]]:
    async with chosen.reached() as cluster:
        described = await cluster.describe(topic)
        if described is None:
            raise no_topic(topic, cluster)
        names, bounds = pick(described, partitions), await cluster.bounds(topic)
        if group is None:
            return "messages", [Standing(name, bounds.get(name)) for name in names]
        rows, _ = await standing(cluster, topic, group, names, bounds)
        return operations_of(cluster).backlog_unit, rows


def _show(topic: str, group: str | None, unit: str, rows: list[Standing], *, as_json: bool) -> None:
    held, lag = total(one.held for one in rows), total(one.lag for one in rows)
    if as_json:
        said: dict[str, Any] = {"topic": topic, "partitions": [_as_json(one, group) for one in rows], "messages": held}
        print_json(said if group is None else said | {"group": group, "lag": lag, "lag_unit": unit})
        return
    columns = ["partition", "first", "next", "messages", *(["committed", "lag"] if group else [])]
    shown = [_row(one, group) for one in rows]
    if len(rows) > 1:
        shown.append(("total", None, None, held, *((None, "?" if lag is None else f"{lag:,}") if group else ())))
    print_table(columns, shown, right=columns[1:])
    if all(one.bounds is None for one in rows):
        say("the cluster does not say where its partitions begin and end: give its admin_url (--at URL?admin=http://HOST:PORT)")
    if group is not None and all(one.committed is None for one in rows):
        say(f"group {group} has no position in {topic}")
    elif unit != "messages" and lag is not None:
        say(f"the lag counts {unit}")


def _as_json(one: Standing, group: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {
        "partition": one.partition,
        "first": None if one.bounds is None else text_of(one.bounds.first),
        "next": None if one.bounds is None else text_of(one.bounds.next),
        "messages": one.held,
    }
    return said if group is None else said | {key: one.as_dict()[key] for key in ("committed", "lag", "at_end")}


def _row(one: Standing, group: str | None) -> tuple[Any, ...]:
    said = _as_json(one, None)
    return (*said.values(), *((text_of(one.committed), lag_text(one)) if group else ()))
