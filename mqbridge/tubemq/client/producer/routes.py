"""A producer's view of the cluster: Brokers and the partitions of its topics, updated by heartbeats to the Master.

A partition that the Master has listed once is kept for the lifetime of this client. While a Broker is down, the Master does not
list its partitions. If they were removed here, too, a topic would have fewer partitions, and the messages of a key would go to
another partition.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

from mqbridge.errors import ClusterError, Failure, ProtocolError, ServerRefused, TopicChanged
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import cancel, is_cancelled, mark_error_retrieved, spawn
from mqbridge.tubemq.client.connection.credentials import Role
from mqbridge.tubemq.client.connection.master import MAX_TOPICS, Masters, call_with_retries, format_topics, new_client_id
from mqbridge.tubemq.client.consumer.topic_probe import check_consumer, topic_exists
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
from mqbridge.tubemq.wire.string_formats import (
    STORE_STEP,
    Broker,
    PartitionRef,
    TopicInfo,
    parse_broker,
    parse_topic_info,
    partition_ids,
)
from mqbridge.wire.limits import MAX_LISTED_PARTITIONS, check_partitions

log = logging.getLogger(__name__)

HEARTBEAT_S = 13.0
"""Interval between heartbeats to the Master."""
NO_BROKERS_KNOWN = -1
"""Value of brokerCheckSum that makes the Master send its list of Brokers; see `Routes._broker_check_sum`."""
REQUEST_CONFIG = -2
"""Value of configId for a client that has no configuration from the Master, so that each response has it, if there is one."""
DEFAULT_MESSAGE_BYTES = 1 << 20
"""The limit for the size of a message if administrators have set none, and the smallest one that Brokers apply."""


FORGOTTEN_S = 30.0
"""How long to wait until the Master no longer lists a deleted topic, which takes a heartbeat of the Broker; no error after it."""
FORGOTTEN_POLL_S = 0.2
"""Pause between two requests for it."""
DELETED_CHECK_S = 10.0
"""Minimum time between two checks whether a topic was deleted; a check joins a temporary group."""


class TopicRoute:
    """A topic's partitions by name (`broker:partition`), sorted by Broker and number.

    partitions  all partitions that the Master has ever listed to producers
    listed      the partitions in the Master's last non-empty list, among which senders may choose
    read_only   partitions that the Master assigns to consumers, but does not list to producers: their Brokers deliver messages of
                the topic, but accept none
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.max_message_bytes: int | None = None
        """The topic's own limit for the size of a message; None if it has none."""
        self.partitions: dict[str, PartitionRef] = {}
        self.listed: list[PartitionRef] = []
        self.read_only: dict[str, PartitionRef] = {}
        self.unlisted: frozenset[str] = frozenset()
        """Names of known partitions that the Master's last response did not list to producers: their Broker is down, or the topic
        or the Broker is closed for producers. Brokers may store messages of a closed topic nevertheless."""
        self.checked_at = float("-inf")
        """Loop time of the last check whether the topic was deleted."""

    @property
    def readable(self) -> dict[str, PartitionRef]:
        """All known partitions, read-only ones included."""
        return self.partitions | self.read_only

    def update(self, info: TopicInfo, brokers: dict[int, Broker]) -> None:
        """Apply the topic's description from the response to a heartbeat. Raises RemoteProtocolError for too many partitions."""
        self.max_message_bytes = info.max_message_bytes
        listed: dict[str, PartitionRef] = {}
        for broker_id, partitions, stores in info.deployments:
            broker = brokers.get(broker_id)
            if broker is None:  # the Master has not sent its address
                continue
            for partition in partition_ids(partitions, stores):
                ref = PartitionRef(broker, self.topic, partition)
                listed[ref.name] = ref
        check_partitions(len(self.partitions | listed), f"topic {self.topic}, with those that it listed before")
        self.partitions = {ref.name: ref for ref in sorted((self.partitions | listed).values(), key=_sort_key)}
        self.listed = sorted(listed.values(), key=_sort_key) or self.listed
        self.unlisted = frozenset(self.partitions.keys() - listed.keys())
        self.read_only = {name: ref for name, ref in self.read_only.items() if name not in self.partitions}

    def on_unlisted(self) -> None:
        """Record that the Master's last response did not list the topic at all."""
        self.unlisted = frozenset(self.partitions)


def _sort_key(ref: PartitionRef) -> tuple[int, int]:
    return ref.broker.id, ref.partition


class Routes:
    """The routes of one producer: registers it at the Master, and updates the routes by heartbeats."""

    def __init__(self, masters: Masters, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.masters = masters
        self.client_id = ""
        self.host = ""
        """Our IPv4 address, for requests to the Master. `start` sets it and the client id; they are empty before."""
        self.max_message_bytes = DEFAULT_MESSAGE_BYTES
        """The cluster's limit for the size of a message, for topics without a limit of their own."""
        self._heartbeat_s = heartbeat_s
        self._broker_check_sum = NO_BROKERS_KNOWN
        """Checksum of the list of Brokers that we have; the Master sends a list only if its checksum differs."""
        self._brokers: dict[int, Broker] = {}
        self._topics: dict[str, TopicRoute] = {}
        """The topics that heartbeats request, by name: all that `topic` has returned."""
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._refresh_task: asyncio.Task[None] | None = None
        self._heartbeat_lock = asyncio.Lock()
        """Held from a heartbeat to its response; see `_request_topics`."""
        self._closed = False

    def is_alone(self, ref: PartitionRef) -> bool:
        """Return True if the partition's store has no other partition; False if this is unknown, too."""
        route = self._topics.get(ref.topic)
        if route is None:
            return False
        store = ref.broker.id, ref.partition // STORE_STEP
        in_store = [name for name, each in route.readable.items() if (each.broker.id, each.partition // STORE_STEP) == store]
        return in_store == [ref.name]

    async def start(self) -> None:
        """Register at the Master, and start the heartbeats. Raises ClusterError after five attempts."""
        self.host = await call_with_retries("connecting to the Master", self.masters.local_host)
        self.client_id = new_client_id(self.host)
        await call_with_retries("registering the producer", self._register)
        self._heartbeat_task = spawn(self._heartbeat_loop(), f"tubemq producer {self.client_id}")

    async def close(self) -> None:
        """Unregister at the Master; pending calls of `refresh` fail."""
        self._closed = True
        await cancel(self._heartbeat_task, self._refresh_task)
        try:
            request = CloseRequestP2M(clientId=self.client_id, authInfo=await self.masters.auth_info())
            await self.masters.call(rpc.PRODUCER_CLOSE, request, CloseResponseM2P)
        except (ClusterError, ProtocolError) as error:
            log.log(
                retry_log_level(error, logging.INFO),
                "unregistering producer %s at the Master failed, the Master will remove the producer after a timeout: %s",
                self.client_id,
                error,
            )

    async def topic(self, topic: str) -> TopicRoute:
        """Return the route of a topic; heartbeats update it from now on. Raises ServerRefused (FATAL) if it does not exist.

        Other failures are retried, in up to five attempts.
        """
        route = self._topics.get(topic)
        if route is None:
            new_route = await call_with_retries(f"looking up topic {topic}", lambda: self.look_up(topic))
            if new_route is None:
                problem = f"TubeMQ knows no topic {topic!r} that accepts messages: create the topic, or correct its name"
                raise ServerRefused(problem, codes.TOPIC_NOT_DEPLOYED, Failure.FATAL)
            route = self._topics.setdefault(topic, new_route)  # a concurrent call may have added it
        return route

    async def readable_with(self, ref: PartitionRef) -> Mapping[str, PartitionRef]:
        """Return the topic's readable partitions, among them this one of a consumer.

        An unknown partition is added as read-only if the Master does not list it to producers. Raises ClusterError.
        """
        route = await self.topic(ref.topic)
        if ref.name not in route.readable:
            await self.refresh()
            if ref.name not in route.partitions:
                log.info("partition %s is read-only now: its Broker accepts no messages for the topic", ref)
                route.read_only[ref.name] = ref
        return route.readable

    async def look_up(self, topic: str) -> TopicRoute | None:
        """Request a topic's route from the Master; return None if the topic does not exist.

        Raises ClusterError (RETRY) if it exists, but no Broker accepts messages for it now.
        """
        route = self._topics.get(topic) or TopicRoute(topic)
        for info in await self._request_topics([topic]):
            if info.topic == topic:
                route.update(info, self._brokers)
        if route.partitions:
            return route
        if await topic_exists(self.masters, self.host, topic):
            problem = f"the Master knows topic {topic!r}, but no Broker accepts messages for it now"
            raise ClusterError(f"{problem}: its Brokers are down or still starting, or it is closed for producers", Failure.RETRY)
        return None

    async def check_exists(self, route: TopicRoute) -> None:
        """Raise TopicChanged if the topic was deleted, as far as the Master knows; the route is then forgotten.

        Does nothing while the Master lists the topic to producers, or within DELETED_CHECK_S after the last check. A topic that
        is only closed exists. Raises ClusterError if the Master cannot be asked.
        """
        now = asyncio.get_running_loop().time()
        is_current = self._topics.get(route.topic) is route
        is_listed = len(route.unlisted) < len(route.partitions)
        if is_current and (is_listed or now - route.checked_at < DELETED_CHECK_S):
            return
        route.checked_at = now
        if is_current and await topic_exists(self.masters, self.host, route.topic):
            return
        if self._topics.get(route.topic) is route:
            del self._topics[route.topic]
        raise TopicChanged(f"the Master knows no topic {route.topic!r} any more: it was deleted; create it again")

    async def forget(self, topic: str) -> None:
        """Forget the route of a deleted topic, and return when the Master no longer knows it; see `FORGOTTEN_S`."""
        self._topics.pop(topic, None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FORGOTTEN_S):
                while await self._is_known(topic):  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(FORGOTTEN_POLL_S)

    async def _is_known(self, topic: str) -> bool:
        """Return True if the Master lists the topic, or knows it. Raises ClusterError, also FATAL errors."""
        try:
            return await self.look_up(topic) is not None
        except ClusterError as error:
            if error.failure is Failure.FATAL:
                raise
            return True

    async def check_consumer(self, topic: str) -> None:
        """Raise the Master's error if it refuses consumers of the topic, for example because of our credentials."""
        await check_consumer(self.masters, self.host, topic)

    async def refresh(self) -> None:
        """Update all routes now. Concurrent calls share one request, and its response or error.

        If a caller is cancelled, the request continues for the others. Raises ClusterError, also if this producer is closed.
        """
        if self._closed:
            raise self._closed_error()
        if self._refresh_task is None or self._refresh_task.done():  # done: its answer is older than this call
            self._refresh_task = spawn(self._refresh(), f"tubemq routes of {self.client_id}", log_errors=False)
            self._refresh_task.add_done_callback(self._on_refresh_done)
        try:
            await asyncio.shield(self._refresh_task)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise self._closed_error() from None

    def _closed_error(self) -> ClusterError:
        return ClusterError(f"producer {self.client_id} is closed: it sends no more requests to the Master", Failure.FATAL)

    async def _refresh(self) -> None:
        if not self._topics:
            return
        infos = await self._request_topics(sorted(self._topics))
        for topic in self._topics.keys() - {info.topic for info in infos}:
            self._topics[topic].on_unlisted()
        for info in infos:
            if info.topic in self._topics:
                self._topics[info.topic].update(info, self._brokers)

    def _on_refresh_done(self, task: "asyncio.Task[None]") -> None:
        if self._refresh_task is task:
            self._refresh_task = None
        mark_error_retrieved(task)

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            try:
                await self.refresh()
            except (ClusterError, ProtocolError) as error:
                log.log(
                    retry_log_level(error, logging.WARNING),
                    "a heartbeat of producer %s failed, retrying in %g s: %s",
                    self.client_id,
                    self._heartbeat_s,
                    error,
                )

    async def _register(self) -> None:
        request = RegisterRequestP2M(
            clientId=self.client_id,
            hostName=self.host,
            brokerCheckSum=NO_BROKERS_KNOWN,
            authInfo=await self.masters.auth_info(),
            appdConfig=ApprovedClientConfig(configId=REQUEST_CONFIG),
        )
        response = await self.masters.call(rpc.PRODUCER_REGISTER, request, RegisterResponseM2P)
        self.masters.raise_if_refused("registering the producer", response, Role.PRODUCER, is_success=response.success)
        self._store_response(response)

    async def _request_topics(self, topics: Sequence[str]) -> list[TopicInfo]:
        """Request these topics from the Master, in heartbeats of at most MAX_TOPICS topics each.

        The Master responds with the topics of the last heartbeat that it received from this producer, which may be a later one
        than the heartbeat that it responds to. So each heartbeat waits for the response to the previous one.
        """
        infos: list[TopicInfo] = []
        async with self._heartbeat_lock:
            for first in range(0, len(topics), MAX_TOPICS):
                response = await self._request_topics_once(topics[first : first + MAX_TOPICS])
                infos += map(parse_topic_info, response.topicInfos)
                check_partitions(sum(info.partition_count for info in infos), "these topics together", MAX_LISTED_PARTITIONS)
        return infos

    async def _request_topics_once(self, topics: Sequence[str]) -> HeartResponseM2P:
        """Send one heartbeat; if the Master no longer knows this producer, register again and repeat it."""
        response = await self._send_heartbeat(topics)
        if response.errCode == codes.NO_NODE:
            log.info("the Master no longer knows producer %s, registering again", self.client_id)
            await self._register()
            response = await self._send_heartbeat(topics)
        self.masters.raise_if_refused(
            f"a producer heartbeat for {format_topics(topics)}", response, Role.PRODUCER, is_success=response.success
        )
        self._store_response(response)
        return response

    async def _send_heartbeat(self, topics: Sequence[str]) -> HeartResponseM2P:
        request = HeartRequestP2M(
            clientId=self.client_id,
            hostName=self.host,
            brokerCheckSum=self._broker_check_sum,
            topicList=topics,
            authInfo=await self.masters.auth_info(),
            appdConfig=ApprovedClientConfig(configId=REQUEST_CONFIG),
        )
        return await self.masters.call(rpc.PRODUCER_HEARTBEAT, request, HeartResponseM2P)

    def _store_response(self, response: RegisterResponseM2P | HeartResponseM2P) -> None:
        """Store the tokens, the cluster's settings and the list of Brokers that a response contains."""
        if response.HasField("authorizedInfo"):
            self.masters.store_tokens(response.authorizedInfo)
        if response.HasField("appdConfig"):
            self.max_message_bytes = response.appdConfig.maxMsgSize or DEFAULT_MESSAGE_BYTES
        if response.brokerInfos:
            brokers = [parse_broker(text, self.masters.broker_port) for text in response.brokerInfos]
            self._brokers = {broker.id: broker for broker in brokers}
        self._broker_check_sum = response.brokerCheckSum
