"""What a producer knows of the cluster: its Brokers and the partitions of its topics, kept current by heartbeats to the Master.

A partition that was seen once stays in the list while this client lives. When a Broker is down the Master stops naming its
partitions; if they vanished here too, the indexes of all the others would move and messages with one key would change partition.
"""

import asyncio
import logging
from collections.abc import Sequence

from mqbridge.errors import ClusterError, Failure, ProtocolError, ServerRefused
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, collect_error, is_cancelled, spawn
from mqbridge.tubemq.client.credentials import Role
from mqbridge.tubemq.client.deployed import check_consumer, is_deployed
from mqbridge.tubemq.client.master import MAX_TOPICS, Masters, client_id, retried, shown
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb.master_pb2 import (
    ApprovedClientConfig,
    CloseRequestP2M,
    CloseResponseM2P,
    HeartRequestP2M,
    HeartResponseM2P,
    RegisterRequestP2M,
    RegisterResponseM2P,
)
from mqbridge.tubemq.wire.text import STORE_STEP, Broker, PartitionRef, TopicInfo, parse_broker, parse_topic_info, partition_ids

log = logging.getLogger(__name__)

HEARTBEAT_S = 13.0
NO_BROKERS_KNOWN = -1
ASK_CONFIG = -2


class TopicRoute:
    """A topic's partitions by name (`broker:partition`), sorted by Broker and number.

    `partitions` are all that were ever seen, `listed` those that the Master named last: for whoever may choose. `read_only` are
    those that only consumers are told of: their Brokers accept subscriptions to the topic, and no messages.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.max_message_bytes: int | None = None
        self.partitions: dict[str, PartitionRef] = {}
        self.listed: list[PartitionRef] = []
        self.read_only: dict[str, PartitionRef] = {}

    @property
    def readable(self) -> dict[str, PartitionRef]:
        """All that are known, read-only ones included."""
        return self.partitions | self.read_only

    def index_of(self, name: str) -> int:
        """The index of a partition in its topic. Raises KeyError.

        A read-only one has the index that it would have if its Broker accepted messages, as far as its name tells: members that
        are told of it while it is read-only find the same. With several stores, one that knew it before may find another, for a
        name does not tell how many partitions a store has: its target partition may change with its member. Another partition may
        have the index, too, and both go to one target partition then, where each keeps its order. The indexes of the others do
        not depend on it.
        """
        if name in self.partitions:
            return list(self.partitions).index(name)
        ref = self.read_only[name]
        store, number = divmod(ref.partition, STORE_STEP)
        return sum(_place(other) < _place(ref) for other in self.partitions.values()) + store + number

    def learn(self, info: TopicInfo, brokers: dict[int, Broker]) -> None:
        """Take in what a heartbeat said."""
        self.max_message_bytes = info.max_message_bytes
        found: dict[str, PartitionRef] = {}
        for number, partitions, stores in info.deployments:
            broker = brokers.get(number)
            for partition in partition_ids(partitions, stores) if broker else ():
                assert broker is not None  # noqa: S101 - for the type checker
                ref = PartitionRef(broker, self.topic, partition)
                found[ref.name] = ref
        self.partitions = {ref.name: ref for ref in sorted((self.partitions | found).values(), key=_place)}
        self.listed = sorted(found.values(), key=_place) or self.listed
        self.read_only = {name: ref for name, ref in self.read_only.items() if name not in self.partitions}


def _place(ref: PartitionRef) -> tuple[int, int]:
    return ref.broker.id, ref.partition


class Routes:
    """A registered producer's view of the cluster."""

    def __init__(self, masters: Masters, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.masters = masters
        self.client_id = ""
        self.host = ""
        self._heartbeat_s = heartbeat_s
        self._check_sum = NO_BROKERS_KNOWN
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, TopicRoute] = {}
        self._task: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Register with the Master. Raises ClusterError after five tries."""
        self.host = await retried("connecting to the Master", self.masters.local_host)
        self.client_id = client_id(self.host)
        await retried("registering the producer", self._register)
        self._task = spawn(self._heartbeats(), f"tubemq producer {self.client_id}")

    async def close(self) -> None:
        """Tell the Master that this producer goes. Whoever waits for a refresh has an error instead."""
        self._closed = True
        await cancel(self._task, self._refreshing)
        try:
            request = CloseRequestP2M(clientId=self.client_id, authInfo=await self.masters.certificate())
            await self.masters.call(rpc.PRODUCER_CLOSE, request, CloseResponseM2P)
        except (ClusterError, ProtocolError) as error:
            log.log(level_of(error, logging.INFO), "the Master was not told that producer %s is gone: %s", self.client_id, error)

    async def topic(self, topic: str) -> TopicRoute:
        """The route of a topic, from now on kept current. Raises ServerRefused (FATAL) when the Master knows no such topic.

        Other failures are tried five times.
        """
        known = self._topics.get(topic)
        if known is None:
            found = await retried(f"looking up topic {topic}", lambda: self.look_up(topic))
            if found is None:
                problem = f"TubeMQ knows no topic {topic!r} that accepts messages; create it, or correct the name"
                raise ServerRefused(problem, codes.TOPIC_NOT_DEPLOYED, Failure.FATAL)
            known = self._topics.setdefault(topic, found)  # somebody beside us may have found it, too
        return known

    async def index_of(self, ref: PartitionRef) -> int:
        """The index of a partition that a consumer was told of: looked up when it is new, read-only when producers are not."""
        route = await self.topic(ref.topic)
        if ref.name not in route.readable:
            await self.refresh()
            if ref.name not in route.partitions:
                log.info("%s is read, although its Broker accepts no messages for the topic now", ref)
                route.read_only[ref.name] = ref
        return route.index_of(ref.name)

    async def look_up(self, topic: str) -> TopicRoute | None:
        """What the Master says about a topic now; None when it has none of that name.

        Raises ClusterError (RETRY) where it has, and no Broker accepts messages for it now.
        """
        known = self._topics.get(topic) or TopicRoute(topic)
        for info in await self._ask([topic]):
            if info.topic == topic:
                known.learn(info, self._brokers)
        if known.partitions:
            return known
        if await is_deployed(self.masters, self.host, topic):
            problem = f"the Master knows topic {topic!r}, but no Broker accepts messages for it now"
            raise ClusterError(f"{problem}: its Brokers are away or not back yet, or it is closed for producers", Failure.RETRY)
        return None

    async def check_consumer(self, topic: str) -> None:
        """Raise what the Master says to whoever consumes the topic; no group of anybody's is touched. Raises ClusterError."""
        await check_consumer(self.masters, self.host, topic)

    async def refresh(self) -> None:
        """Bring all routes up to date now; all who ask at once share one question, its answer or its error.

        It goes on when whoever asked gives up waiting. Raises ClusterError, also when this producer is closed.
        """
        if self._closed:
            raise self._was_closed()
        if self._refreshing is None:
            self._refreshing = spawn(self._refresh(), f"tubemq routes of {self.client_id}", quiet=True)
            self._refreshing.add_done_callback(self._refreshed)
        try:
            await asyncio.shield(self._refreshing)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise self._was_closed() from None

    def _was_closed(self) -> ClusterError:
        return ClusterError(f"producer {self.client_id} is closed: it asks the Master nothing more", Failure.FATAL)

    async def _refresh(self) -> None:
        if self._topics:
            for info in await self._ask(sorted(self._topics)):
                if info.topic in self._topics:
                    self._topics[info.topic].learn(info, self._brokers)

    def _refreshed(self, task: "asyncio.Task[None]") -> None:
        self._refreshing = None
        collect_error(task)

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            try:
                await self.refresh()
            except (ClusterError, ProtocolError) as error:
                log.log(
                    level_of(error, logging.WARNING),
                    "a producer heartbeat failed, trying again in %g s: %s",
                    self._heartbeat_s,
                    error,
                )

    async def _register(self) -> None:
        request = RegisterRequestP2M(
            clientId=self.client_id,
            hostName=self.host,
            brokerCheckSum=NO_BROKERS_KNOWN,
            authInfo=await self.masters.certificate(),
            appdConfig=ApprovedClientConfig(configId=ASK_CONFIG),
        )
        answer = await self.masters.call(rpc.PRODUCER_REGISTER, request, RegisterResponseM2P)
        self.masters.check("registering the producer", answer, Role.PRODUCER, is_good=answer.success)
        self._learn(answer)

    async def _ask(self, topics: Sequence[str]) -> list[TopicInfo]:
        """What the Master says of these topics, by heartbeats of as many as it takes at once.

        It answers about what the last heartbeat of a producer named, whichever that was: so none begins before the one before
        it is answered.
        """
        found: list[TopicInfo] = []
        async with self._asking:
            for first in range(0, len(topics), MAX_TOPICS):
                answer = await self._ask_once(topics[first : first + MAX_TOPICS])
                found += map(parse_topic_info, answer.topicInfos)
        return found

    async def _ask_once(self, topics: Sequence[str]) -> HeartResponseM2P:
        """One heartbeat, after registering again when the Master has forgotten us."""
        answer = await self._heartbeat(topics)
        if answer.errCode == codes.NO_NODE:
            log.info("the Master does not know producer %s any more; it registers again", self.client_id)
            await self._register()
            answer = await self._heartbeat(topics)
        self.masters.check(f"a producer heartbeat for {shown(topics)}", answer, Role.PRODUCER, is_good=answer.success)
        self._learn(answer)
        return answer

    async def _heartbeat(self, topics: Sequence[str]) -> HeartResponseM2P:
        request = HeartRequestP2M(
            clientId=self.client_id,
            hostName=self.host,
            brokerCheckSum=self._check_sum,
            topicList=topics,
            authInfo=await self.masters.certificate(),
            appdConfig=ApprovedClientConfig(configId=ASK_CONFIG),
        )
        return await self.masters.call(rpc.PRODUCER_HEARTBEAT, request, HeartResponseM2P)

    def _learn(self, answer: RegisterResponseM2P | HeartResponseM2P) -> None:
        if answer.HasField("authorizedInfo"):
            self.masters.learn(answer.authorizedInfo)
        if answer.brokerInfos:
            brokers = [parse_broker(text, self.masters.broker_port) for text in answer.brokerInfos]
            self._brokers = {broker.id: broker for broker in brokers}
        self._check_sum = answer.brokerCheckSum
