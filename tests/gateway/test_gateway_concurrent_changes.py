"""Concurrent changes: new partitions and topics, revocations and new configurations lose no message."""

import random
from pathlib import Path

import pytest
import yaml

from tests.gateway.world import World, committed, end, fill, named, put, route, running, until

ROUNDS = 25


@pytest.mark.parametrize("seed", range(4))
async def test_nothing_is_lost(world: World, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    file = tmp_path / "gateway.yaml"
    fill(world.a, "t0", 2, 0)
    sent: dict[tuple[str, int], list[bytes]] = {}
    settings = {"individual_ack": seed % 2 == 1}
    moved = route("moved", "a/~t.", end("b/{topic}", partitions={"by": "identity"}), source_={"refresh": "100ms"})
    config = world.config(moved, route("still", "a/~t.", "c/{topic}", source_={"refresh": "100ms"}), a=settings) | {
        "state": str(tmp_path / "state.db")
    }
    write(file, config)
    async with running(config, file) as gateway:
        still = named(gateway, "still")
        for change in range(ROUNDS):
            for topic, partitions in world.a.topics.items():
                for number in range(len(partitions)):
                    payloads = [b"%s/%d/%d/%d" % (topic.encode(), number, change, n) for n in range(dice.randrange(40))]
                    put(world.a, topic, number, *payloads)
                    sent.setdefault((topic, number), []).extend(payloads)
            topic = dice.choice(sorted(world.a.topics))
            match dice.randrange(6):
                case 0:
                    world.a.create(topic, len(world.a.topics[topic]) + 1)
                case 1:
                    world.a.create(f"t{len(world.a.topics)}", 2)
                case 2:
                    world.a.revoke(topic, dice.randrange(len(world.a.topics[topic])))
                case 3:
                    world.b.faults.transient = 5
                case _:
                    config["routes"][0]["delivery"] = {"in_flight_bytes": 65536 + change}
                    write(file, config)
                    result = await gateway.reloader.reload()
                    assert (result.problems, result.routes["started"]) == ([], ["moved"])
            assert named(gateway, "still") is still
        for name in ("moved", "still"):
            await until(lambda name=name: committed(world.a, f"g-{name}") == sum(map(len, sent.values())))  # type: ignore[misc]
    for (topic, number), payloads in sent.items():
        for made in (world.b, world.c):
            arrived = [message.payload for partition in made.topics[topic] for message in partition.messages]
            assert set(payloads) <= set(arrived)
        there = [message.payload for message in world.b.topics[topic][number].messages]
        assert list(dict.fromkeys(there)) == payloads  # a message may be repeated, but does not overtake an earlier one


def write(file: Path, config: object) -> None:
    file.write_text(yaml.safe_dump(config))
