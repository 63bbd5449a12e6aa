"""Java push consumers and ours in one group: each queue has one owner, and nothing is lost when members come and go."""

import asyncio
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mqbridge.rocketmq.wire.allocation_strategies import STRATEGIES, divide
from tests.kit.guard import guard
from tests.kit.maven import java
from tests.kit.rocketmq_settings import server_jars
from tests.rocketmq.client.real_topics import Environment, NewEnvironment, ReadingMember, new_environment, until

__all__ = ["new_environment"]

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.sdk]

PROGRAM = Path(__file__).with_name("PushMember.java")
QUEUES = 8
EXIT_TIMEOUT_S = 60.0


class JavaMember:
    """A push consumer of the official Java client, in a process of its own.

    `received`: queue number and body of each message.
    """

    def __init__(self, env: Environment, strategy: str, mode: str) -> None:
        argv = [str(java()), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{server_jars()}/*", str(PROGRAM)]
        argv += [env.server.name_server, env.topic, env.group, strategy, mode]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        guard().process(self.process.pid)
        self.received: list[tuple[int, bytes]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            number, _, body = line.rstrip("\n").partition(" ")
            if number.isdigit():
                self.received.append((int(number), body.encode()))

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


def bodies(*members: JavaMember | ReadingMember) -> list[bytes]:
    return [message[-1] for member in members for message in member.received]


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_java_members_and_ours_divide_the_queues_of_a_group(
    new_environment: NewEnvironment, members: list[JavaMember], strategy: str, mode: str
) -> None:
    env = new_environment(QUEUES)
    settings = {"strategy": STRATEGIES[strategy], "orderly": mode == "orderly"}
    sent = await send_round(env, "before")
    theirs = JavaMember(env, strategy, mode)
    members.append(theirs)
    await until(lambda: set(bodies(theirs)) == sent)

    ours = [await env.join_reading(**settings), await env.join_reading(**settings)]
    shares = await expected_queues(env, strategy, env.client_ids)
    await until(lambda: [member.queues for member in ours] == shares)
    # Once all three members have settled, each message of a round is received once, by the owner of its queue.
    for attempt in range(20):
        before = {member: len(member.received) for member in (theirs, *ours)}
        wanted = await send_round(env, f"round {attempt}")
        await until(lambda wanted=wanted: wanted <= set(bodies(theirs, *ours)))
        new = [(member, message[-1]) for member, start in before.items() for message in member.received[start:]]
        held = [queue for member in ours for queue in member.queues]
        java_has = {int(body.split()[-1]) for member, body in new if member is theirs}
        settled = len(new) == QUEUES and len(held) == len(set(held)) and java_has == set(range(QUEUES)) - set(held)
        if settled:
            break
        await asyncio.sleep(1.0)
    assert settled

    await asyncio.to_thread(theirs.leave)
    wanted = await send_round(env, "without Java")
    await until(lambda: wanted <= set(bodies(*ours)))
    await until(lambda: sorted(ours[0].queues + ours[1].queues) == list(range(QUEUES)))


async def expected_queues(env: Environment, strategy: str, ours: Sequence[str]) -> list[list[int]]:
    """Return the queues that the strategy gives to each of our members; consistent hashing may give none."""
    connected = await (await env.client()).groups.consumers(env.group)
    assert connected is not None
    members = [*ours, *(member.client_id for member in connected.connections if member.language == "JAVA")]
    queues = [env.queue(number) for number in range(QUEUES)]
    return [sorted(queue.id for queue in divide(STRATEGIES[strategy], client_id, queues, members)) for client_id in ours]


async def send_round(env: Environment, name: str) -> set[bytes]:
    """Send one message to each queue, whose body ends with the queue's number, and return the bodies."""
    sent = {b"%s %d" % (name.encode(), number) for number in range(QUEUES)}
    for body in sent:
        await env.send(body, queue=int(body.split()[-1]))
    return sent
