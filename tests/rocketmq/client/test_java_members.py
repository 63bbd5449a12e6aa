"""Java push consumers and ours in one group: each queue has one owner, and nothing is lost when members come and go."""

import asyncio
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mqbridge.rocketmq.client.allocation_strategies import STRATEGIES, divide
from tests.kit.guard import guard
from tests.kit.maven import java
from tests.kit.rocketmq_settings import server_jars
from tests.rocketmq.client.real_topics import Place, Places, Reading, places, until

__all__ = ["places"]

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.sdk]

PROGRAM = Path(__file__).with_name("PushMember.java")
QUEUES = 8
EXIT_TIMEOUT_S = 60.0


class JavaMember:
    """A push consumer of the official client, until `leave`."""

    def __init__(self, place: Place, strategy: str, mode: str) -> None:
        argv = [str(java()), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{server_jars()}/*", str(PROGRAM)]
        argv += [place.kit.name_server, place.topic, place.group, strategy, mode]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        guard().process(self.process.pid)
        self.got: list[tuple[int, bytes]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            number, _, body = line.rstrip("\n").partition(" ")
            if number.isdigit():
                self.got.append((int(number), body.encode()))

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(EXIT_TIMEOUT_S)
        self._reader.join(EXIT_TIMEOUT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def members() -> Iterator[list[JavaMember]]:
    made: list[JavaMember] = []
    yield made
    for member in made:
        if member.process.poll() is None:
            member.process.kill()
            member.leave()


def bodies(*members: JavaMember | Reading) -> list[bytes]:
    return [one[-1] for member in members for one in member.got]


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_java_and_we_share_a_group(places: Places, members: list[JavaMember], strategy: str, mode: str) -> None:
    place = places(QUEUES)
    settings = {"strategy": STRATEGIES[strategy], "orderly": mode == "orderly"}
    sent = await send_round(place, "before")
    theirs = JavaMember(place, strategy, mode)
    members.append(theirs)
    await until(lambda: set(bodies(theirs)) == sent)

    ours = [await place.reading(**settings), await place.reading(**settings)]
    shares = await divided(place, strategy, place.client_ids)
    await until(lambda: [one.queues for one in ours] == shares)
    # When all three have settled, what one round brings comes once, and to whoever owns the queue.
    for attempt in range(20):
        before = {member: len(member.got) for member in (theirs, *ours)}
        wanted = await send_round(place, f"round {attempt}")
        await until(lambda wanted=wanted: wanted <= set(bodies(theirs, *ours)))
        new = [(member, one[-1]) for member, start in before.items() for one in member.got[start:]]
        held = [queue for one in ours for queue in one.queues]
        java_has = {int(body.split()[-1]) for member, body in new if member is theirs}
        settled = len(new) == QUEUES and len(held) == len(set(held)) and java_has == set(range(QUEUES)) - set(held)
        if settled:
            break
        await asyncio.sleep(1.0)
    assert settled

    await asyncio.to_thread(theirs.leave)
    wanted = await send_round(place, "without Java")
    await until(lambda: wanted <= set(bodies(*ours)))
    await until(lambda: sorted(ours[0].queues + ours[1].queues) == list(range(QUEUES)))


async def divided(place: Place, strategy: str, ours: Sequence[str]) -> list[list[int]]:
    """The queues that are to be ours, by member; by the consistent hash they can be none."""
    known = await (await place.client()).groups.consumers(place.group)
    assert known is not None
    members = [*ours, *(member.client_id for member in known.connections if member.language == "JAVA")]
    queues = [place.queue(number) for number in range(QUEUES)]
    return [sorted(queue.id for queue in divide(STRATEGIES[strategy], one, queues, members)) for one in ours]


async def send_round(place: Place, name: str) -> set[bytes]:
    """One message to each queue, which ends with the queue's number."""
    sent = {b"%s %d" % (name.encode(), number) for number in range(QUEUES)}
    for body in sent:
        await place.send(body, queue=int(body.split()[-1]))
    return sent
