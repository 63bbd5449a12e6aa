"""`mqbridge state`: what the state file of a gateway has about brokers, and forgetting one that is gone for good."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqbridge.cli.options.cluster_options import JsonOption
from mqbridge.cli.output.console import command, print_json, print_note, print_table
from mqbridge.errors import ConfigError

if TYPE_CHECKING:
    from mqbridge.delivery.state_brokers import TopicBrokers


@command
def state(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration of the gateway, with the option `state`.")],
    forget: Annotated[
        str | None, typer.Option("--forget-broker", metavar="CLUSTER/BROKER", help="Forget a broker that is gone for good.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Forget it for this topic only; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what --forget-broker would do.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Carry out --forget-broker.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show which brokers the state file of a gateway knows, by topic; or forget one that is gone for good.

    For example:

        mqbridge state gateway.yaml
        mqbridge state gateway.yaml --forget-broker source/broker-b --dry-run
        mqbridge state gateway.yaml --forget-broker source/broker-b --yes

    A gateway does not write a topic while a broker that it knows is missing: messages of a key, or of a source partition, would
    go to other partitions. A broker that is removed for good has to be forgotten, while no gateway uses the state file. Do not
    forget one that returns. Positions are kept.
    """
    from mqbridge.config.load import load
    from mqbridge.delivery.state_brokers import forget_broker, topic_brokers

    path = load(file).state
    if path is None:
        raise ConfigError(f"{file} has no `state`, so its gateway keeps nothing about brokers", hint="Restart it to forget them")
    topics = topic_brokers(path)
    if forget is None:
        if yes or dry_run or topic:
            raise ConfigError("--yes, --dry-run and --topic need --forget-broker", hint="Name it: --forget-broker CLUSTER/BROKER")
        _show(topics, as_json=as_json)
        return
    cluster, _, broker = forget.partition("/")
    if not broker:
        raise ConfigError(f"{forget!r} has no broker", path="--forget-broker", hint="Write CLUSTER/BROKER")
    concerned = _concerned(topics, cluster, broker, topic)
    is_executed = yes and not dry_run
    if is_executed:
        forget_broker(path, cluster, broker, [each.topic for each in concerned])
    _show_forgotten(concerned, cluster, broker, is_executed=is_executed, as_json=as_json)
    if not yes and not dry_run:
        raise ConfigError("nothing was forgotten", hint="Add --yes to forget it, or --dry-run to only show what would change")


def _concerned(topics: "Sequence[TopicBrokers]", cluster: str, broker: str, only: Sequence[str] | None) -> "list[TopicBrokers]":
    """Return the topics for which the file knows this broker. Raises ConfigError if there is none."""
    found = [each for each in topics if each.cluster == cluster and each.has(broker) and (not only or each.topic in only)]
    if not found:
        where = f" for topic {', '.join(only)}" if only else ""
        known = sorted({f"{each.cluster}/{name}" for each in topics for name in each.brokers})
        problem = f"the state file knows no broker {broker!r} of cluster {cluster!r}{where}"
        raise ConfigError(problem, path="--forget-broker", hint=f"It knows {', '.join(known) or 'none'}")
    return found


def _show(topics: "Sequence[TopicBrokers]", *, as_json: bool) -> None:
    if as_json:
        print_json([{"cluster": each.cluster, **_fields(each)} for each in topics])
        return
    rows = [(each.cluster, each.topic, ", ".join(each.brokers), _layout_text(each)) for each in topics]
    print_table(["cluster", "topic", "brokers", "indexes count over"], rows)
    if not topics:
        print_note("the state file knows no brokers: only topics of RocketMQ and TubeMQ have some")


def _show_forgotten(topics: "Sequence[TopicBrokers]", cluster: str, broker: str, *, is_executed: bool, as_json: bool) -> None:
    """Print what is left of each topic, and what that changes."""
    left = [each.without(broker) for each in topics]
    if as_json:
        fields = [_fields(each) for each in left]
        print_json({"cluster": cluster, "broker": broker, "forgotten": is_executed, "topics": fields})
        return
    rows = [(each.topic, ", ".join(each.brokers) or "none", _layout_text(each)) for each in left]
    print_table(["topic", "brokers left", "indexes count over"], rows)
    verb = "is forgotten" if is_executed else "would be forgotten"
    print_note(f"broker {broker} of cluster {cluster} {verb} for {len(left)} topic{'' if len(left) == 1 else 's'}")
    if any(before.layout != after.layout for before, after in zip(topics, left, strict=True)):
        print_note("indexes change once: `identity` and indexes in a `table` may choose other target partitions")
    if any(before.brokers != after.brokers for before, after in zip(topics, left, strict=True)):
        print_note("if the broker still runs, or returns, the gateway knows it again as soon as the servers list it")


def _fields(topic: "TopicBrokers") -> dict[str, Any]:
    layout = [{"broker": series.broker, "store": series.store} for series in topic.layout]
    return {"topic": topic.topic, "brokers": list(topic.brokers), "indexes": layout}


def _layout_text(topic: "TopicBrokers") -> str:
    """Return the series over which indexes are counted; empty if none are recorded."""
    return ", ".join(f"{broker} (store {store})" if store else broker for broker, store in topic.layout)
