"""`mqbridge topics`: list, describe and create topics."""

import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import ReadPermitter
from mqbridge.cli.group_state.lag import PartitionLag
from mqbridge.cli.options import completion
from mqbridge.cli.options.cluster_options import ClusterOption, ConfigOption, JsonOption, UrlOption, choose, topic_not_found
from mqbridge.cli.output.console import command, print_json, print_note, print_table, stdout_console
from mqbridge.cli.process import event_loop
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.message import format_position

if TYPE_CHECKING:
    from mqbridge.config.cluster_choice import ClusterChoice

log = logging.getLogger(__name__)


@command
def topics(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="The topics to describe or create; without any, all topics are listed.",
            autocompletion=completion.topics,
        ),
    ] = None,
    create: Annotated[
        int | None,
        typer.Option("--create", metavar="N", min=1, max=100_000, help="Create the topics with N partitions, or grow them to N."),
    ] = None,
    permit_reading: Annotated[
        bool,
        typer.Option(
            "--permit-reading",
            help="Permit reading of the topics where their permission forbids it (RocketMQ), such as dead-letter topics of old "
            "Brokers. The change is permanent.",
        ),
    ] = False,
    config: ConfigOption = None,
    cluster: ClusterOption = None,
    at: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List topics, describe them (partitions with first and next position, settings), or create them.

    For example:

        mqbridge topics --at pulsar://127.0.0.1:6650
        mqbridge topics orders -F gateway.yaml -b source
        mqbridge topics orders --create 8 --at log:///tmp/orders.db
        mqbridge topics %DLQ%billing --permit-reading -F gateway.yaml -b rocket

    Without names, all topics are listed. --create leaves a topic unchanged that has as many partitions or more.
    """
    if not names and (create is not None or permit_reading):
        raise typer.BadParameter(f"name the topics {'to read' if permit_reading else 'to create'}", param_hint="TOPIC")
    event_loop.run(_topics(choose(config, cluster, at), names or [], create, as_json, permit_reading=permit_reading))


async def _topics(choice: "ClusterChoice", names: list[str], create: int | None, as_json: bool, *, permit_reading: bool) -> None:
    """List all topics, or describe the named ones; with `create`, first create them with this number of partitions."""
    async with choice.connected() as cluster:
        if not names:
            listed = sorted(await cluster.topics())
            print_json(listed) if as_json else print_table(["topic"], [(name,) for name in listed])
            return
        for name in names if create is not None else []:
            await cluster.create(name, create or 1)  # `create` is at least 1 here; the type checker does not know this
        for name in names if permit_reading else []:
            await _permit_reading(cluster, name)
        described = [await _describe(cluster, name) for name in names]
    if as_json:
        print_json(described)
        return
    rows = [
        (topic["topic"], partition["name"], partition["first"], partition["next"], partition["messages"])
        for topic in described
        for partition in topic["partitions"]
    ]
    print_table(["topic", "partition", "first", "next", "messages"], rows, right=["first", "next", "messages"])
    settings = [(topic["topic"], name, value) for topic in described for name, value in topic["settings"].items()]
    if settings:
        stdout_console().print()
        print_table(["topic", "setting", "value"], settings)


async def _permit_reading(cluster: Cluster, name: str) -> None:
    """Permit reading of a topic, and say where it was forbidden. Raises ClusterError, and ConfigError for another system."""
    operations = cluster.operations
    if not isinstance(operations, ReadPermitter):
        raise ConfigError(
            f"topics of cluster {cluster.name!r} have no permission to read of their own",
            hint="Use --permit-reading only with RocketMQ; other systems permit reading to users",
        )
    if await cluster.describe(name) is None:
        raise topic_not_found(name, cluster)
    brokers = await operations.permit_reading(name)
    print_note(f"reading {name} is permitted now at {', '.join(brokers)}" if brokers else f"reading {name} was permitted already")


async def _describe(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return the fields of a topic for JSON: partitions and settings. Unknown bounds and counts are None. Raises ClusterError."""
    topic = await cluster.describe(name)
    if topic is None:
        raise topic_not_found(name, cluster)
    if topic.unreadable is not None:
        log.warning("%s", topic.unreadable)
    try:
        bounds = await cluster.bounds(name)
    except ClusterError as error:
        if error.failure is not Failure.FATAL:
            raise
        log.warning("the positions of topic %s are unknown: %s", name, error)
        bounds = {}
    rows = [
        {
            "name": partition,
            "first": format_position(bounds[partition].first) if partition in bounds else None,
            "next": format_position(bounds[partition].next) if partition in bounds else None,
            "messages": PartitionLag(partition, bounds.get(partition)).message_count,  # needs no group
        }
        for partition in topic.partitions
    ]
    settings = {} if cluster.operations is None else dict(await cluster.operations.settings(name))
    return {"topic": name, "partitions": rows, "settings": settings}
