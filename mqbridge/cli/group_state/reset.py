"""Moves a group to other positions. The positions of all partitions are resolved before the first one is changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqbridge.adapter.operations import Operations
from mqbridge.adapter.topics import Bounds
from mqbridge.cli.group_state.lag import position_text
from mqbridge.cli.options.cluster_options import operations_of, readable_topic
from mqbridge.cli.options.start_position import StartPosition, resolve_positions, select_partitions
from mqbridge.cli.output.console import print_json, print_note, print_table
from mqbridge.errors import ConfigError
from mqbridge.message import Position

if TYPE_CHECKING:
    from mqbridge.config.cluster_choice import ClusterChoice


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """The options of `offsets --reset`.

    Without `execute`, the plan is only made and shown. With `create`, the group need not exist. `partitions` are names; none
    means all partitions.
    """

    topic: str
    group: str
    partitions: Sequence[str]
    to: StartPosition
    create: bool
    execute: bool


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The moves of a request, with `execute` already carried out."""

    request: ResetRequest
    moves: tuple[tuple[str, Position | None, Position, Bounds | None], ...]
    """For each partition: its name, the committed position before or None, the new position, and the bounds if known."""


async def reset(choice: "ClusterChoice", request: ResetRequest) -> ResetPlan:
    """Make the plan, and carry it out if `execute` is set. Raises ClusterError or ConfigError."""
    topic, group = request.topic, request.group
    async with choice.connected() as cluster:
        described = await readable_topic(cluster, topic)
        operations = operations_of(cluster)
        committed = await cluster.committed(topic, group)
        if not committed and not request.create:
            await _check_group_exists(operations, topic, group)
        names, bounds = select_partitions(described, request.partitions), await cluster.bounds(topic)
        targets = await resolve_positions(cluster, topic, names, request.to, bounds)
        if request.execute:
            await operations.move(topic, group, targets)
    return ResetPlan(request, tuple((name, committed.get(name), target, bounds.get(name)) for name, target in targets.items()))


async def _check_group_exists(operations: Operations, topic: str, group: str) -> None:
    """Raise ConfigError for an unknown group: moving a misspelt name would create a new group."""
    known = await operations.groups(topic)
    if group not in known:
        groups = f"It has {', '.join(sorted(known))}" if known else "It has none"
        raise ConfigError(f"topic {topic!r} has no group {group!r}", hint=f"{groups}; --create makes a new one")


def show(plan: ResetPlan, *, as_json: bool) -> None:
    """Print the plan, and whether it was carried out."""
    request = plan.request
    if as_json:
        moves = [
            {"partition": name, "committed": position_text(before), "to": position_text(after)}
            for name, before, after, _ in plan.moves
        ]
        print_json({"topic": request.topic, "group": request.group, "moved": request.execute, "partitions": moves})
        return
    rows = [
        (name, position_text(before), position_text(after), describe_change(before, after, bounds))
        for name, before, after, bounds in plan.moves
    ]
    print_table(["partition", "committed", "to", "change"], rows, right=["committed", "to", "change"])
    done = "is moved" if request.execute else "would be moved"
    print_note(f"group {request.group} {done} in {len(rows)} partition{'' if len(rows) == 1 else 's'} of {request.topic}")


def describe_change(before: Position | None, after: Position, bounds: Bounds | None) -> str:
    """Describe a move: the number of messages if it is the difference of the positions, else the direction.

    A move within an empty partition changes nothing, even if the positions differ.
    """
    if before is None:
        return "new"
    if (count := (bounds or Bounds(before, before)).count_between(before, after)) is not None:
        return f"{count:+,}" if count else "none"
    if before == after or (bounds is not None and bounds.first == bounds.next <= min(before, after)):
        return "none"
    return "forward" if after > before else "back"
