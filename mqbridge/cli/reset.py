"""Moving a group for a person: first the whole plan, then all of it, so that what was shown is what is done."""

from collections.abc import Sequence
from dataclasses import dataclass

from mqbridge.adapter.operations import Operations
from mqbridge.adapter.topics import Bounds
from mqbridge.cli.console import print_json, print_table, say
from mqbridge.cli.places import Place, find, pick
from mqbridge.cli.reach import no_topic, operations_of
from mqbridge.cli.standing import distance, text_of
from mqbridge.config.chosen import Chosen
from mqbridge.errors import ConfigError
from mqbridge.message import Position


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

    topic: str
    group: str
    partitions: Sequence[str]
    place: Place
    create: bool
    do_it: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """By partition, where the group is and where it goes, and where the partition begins and ends as far as that is known."""

    wanted: Wanted
    moves: tuple[tuple[str, Position | None, Position, Bounds | None], ...]


async def reset(chosen: Chosen, wanted: Wanted) -> Plan:
    """Work out the plan, and carry it out if that is wanted. Raises ClusterError, ConfigError."""
    topic, group = wanted.topic, wanted.group
    async with chosen.reached() as cluster:
        described = await cluster.describe(topic)
        if described is None:
            raise no_topic(topic, cluster)
        operations = operations_of(cluster)
        committed = await cluster.committed(topic, group)
        if not committed and not wanted.create:
            await _must_exist(operations, topic, group)
        names, bounds = pick(described, wanted.partitions), await cluster.bounds(topic)
        targets = await find(cluster, topic, names, wanted.place, bounds)
        if wanted.do_it:
            await operations.move(topic, group, targets)
    return Plan(wanted, tuple((name, committed.get(name), target, bounds.get(name)) for name, target in targets.items()))


async def _must_exist(operations: Operations, topic: str, group: str) -> None:
    """A misspelt name would make a group that nobody consumes as, and leave the one that was meant."""
    known = await operations.groups(topic)
    if group not in known:
        has = f"It has {', '.join(sorted(known))}" if known else "It has none"
        raise ConfigError(f"topic {topic!r} has no group {group!r}", hint=f"{has}; --create makes a new one")


def show(plan: Plan, *, as_json: bool) -> None:
    """The plan, and whether it was carried out."""
    wanted = plan.wanted
    if as_json:
        moves = [{"partition": name, "committed": text_of(before), "to": text_of(after)} for name, before, after, _ in plan.moves]
        print_json({"topic": wanted.topic, "group": wanted.group, "moved": wanted.do_it, "partitions": moves})
        return
    rows = [(name, text_of(before), text_of(after), change(before, after, bounds)) for name, before, after, bounds in plan.moves]
    print_table(["partition", "committed", "to", "change"], rows, right=["committed", "to", "change"])
    done = "is moved" if wanted.do_it else "would be moved"
    say(f"group {wanted.group} {done} in {len(rows)} partition{'' if len(rows) == 1 else 's'} of {wanted.topic}")


def change(before: Position | None, after: Position, bounds: Bounds | None) -> str:
    """What a move means: in messages where positions count them. In an empty partition all places are one."""
    if before is None:
        return "new"
    if (by := distance(before, after)) is not None:
        return f"{by:+,}" if by else "none"
    if before == after or (bounds is not None and bounds.first == bounds.next <= min(before, after)):
        return "none"
    return "forth" if after > before else "back"
