"""Measuring a range: it is counted in units and can be split between any two; the parts contain exactly its messages."""

import itertools

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.tools.unit_ranges import count_units, position_after, split_evenly
from mqbridge.message import Position
from tests.conformance.arena import Arena, numbers
from tests.conformance.test_reading import messages_of, read, topic_of

SIZE = 30


async def split_counts(arena: Arena, cluster: Cluster, topic: str, name: str, edges: list[Position]) -> list[int]:
    """Return the messages of the ranges between these positions, in order."""
    found: list[int] = []
    for begin, end in itertools.pairwise(edges):
        found += numbers(messages_of(await read(arena, cluster, topic, name, begin, end)))
    return found


async def test_a_range_can_be_split_at_every_unit(arena: Arena, cluster: Cluster) -> None:
    topic, [name] = await topic_of(arena, cluster, SIZE)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    unit_ranges = await arena.within(cluster.measure(topic, name, bounds.first, bounds.next))
    assert bounds.first <= unit_ranges[0].first < bounds.next
    edges = [bounds.first, *(position_after(unit_ranges, unit, bounds.next) for unit in range(1, count_units(unit_ranges) + 1))]
    assert edges == sorted(set(edges))
    assert await split_counts(arena, cluster, topic, name, edges) == list(range(SIZE))


async def test_ranges_may_begin_and_end_inside_stored_units(arena: Arena, cluster: Cluster) -> None:
    topic, [name, _] = await topic_of(arena, cluster, SIZE, SIZE)
    bounds = (await arena.within(cluster.bounds(topic)))[name]
    whole = messages_of(await read(arena, cluster, topic, name, bounds.first, bounds.next))
    edges = [*(message.position for message in whole), bounds.next]
    for first, last in ((0, 1), (3, 5), (2, 17), (8, SIZE), (11, 12)):
        begin, end = edges[first], edges[last]
        unit_ranges = await arena.within(cluster.measure(topic, name, begin, end))
        for pieces in (2, 5):
            cut = split_evenly(unit_ranges, begin, end, pieces)
            assert (cut[0][0], cut[-1][1]) == (begin, end)
            inner = [piece[1] for piece in cut]
            assert await split_counts(arena, cluster, topic, name, [begin, *inner]) == list(range(first, last)), (
                first,
                last,
                pieces,
            )


async def test_an_empty_range_has_no_units(arena: Arena, cluster: Cluster) -> None:
    topic, names = await topic_of(arena, cluster, 5, 0)
    bounds = await arena.within(cluster.bounds(topic))
    for name in names:
        held = bounds[name]
        assert await arena.within(cluster.measure(topic, name, held.next, held.next)) == []
        assert await arena.within(cluster.measure(topic, name, held.next, held.first)) == []
