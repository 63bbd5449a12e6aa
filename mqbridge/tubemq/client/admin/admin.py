"""Client of the HTTP administration API of Master and Brokers, for operations that the RPC protocol does not have.

Every response has the fields `result` and `errCode`; a response with a true `result` may still contain entries that failed, with
`success: false`. A parameter may name several topics or groups, separated by commas, and an empty one means all; so responses
are filtered by the name that was asked for. Calls that change something at the Master need its confModAuthToken. This client does
not use `admin_query_group_offset`, because that call makes the queried group start at offset 0.
"""

import asyncio
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError, RequestTimeout, ServerRefused, Unreachable
from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.http_client import HttpConnections, parse_json, reads_json
from mqbridge.net.secret import Secret
from mqbridge.net.tls.tls import Tls
from mqbridge.tubemq.wire.string_formats import partition_ids
from mqbridge.wire.limits import check_partitions, shorten

TIMEOUT_S = 10.0
"""Default time to wait for a response."""
READY_TIMEOUT_S = 90.0
"""How long to wait until a new topic accepts messages. That takes a few heartbeats of the Broker; some versions take 35 s."""
READY_POLL_S = 0.5
"""Interval between queries whether a new topic accepts messages."""
USER = "mqbridge"
"""The author of changes, which the Master stores with each topic."""
UNAUTHORIZED = "unauthorized"
"""Part of the Master's error text for a wrong token; there is no error code for this."""
SYSTEM_TOPICS = frozenset({"__offset_history__"})
"""TubeMQ's own topics, which `topics` omits."""


ONLINE, READ_ONLY, WRITE_ONLY = "online", "only-read", "only-write"
"""Modes of Brokers that may run; a Broker that accepts no messages still has those that it has stored."""


class Node(NamedTuple):
    """An online Broker and its web address."""

    id: int
    url: str


class StoredRange(NamedTuple):
    """The offset of a partition's first stored message, and the offset that its next message will get."""

    first: int
    next: int


class Admin:
    """Admin API of one cluster. `url` is the Master's web address; `token` its confModAuthToken, needed only for changes.

    `tls` is for an `https` address, that is for a reverse proxy in front of the Master. The servers' own web interfaces have no
    TLS, so Brokers are called without it. `proxy` is the address of a forward proxy for all calls; None: no proxy, whatever the
    environment says. `addresses` says where Masters and Brokers can be reached.

    Methods raise Unreachable, RequestTimeout, ServerRefused (FATAL), and for malformed responses RemoteProtocolError or
    ClusterError (RETRY); changes also raise ClusterError, FATAL without a token and RETRY if no Broker is online.
    """

    def __init__(
        self,
        url: str,
        token: Secret | str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        tls: Tls | None = None,
        proxy: str | None = None,
        addresses: AddressMap = DIRECT,
    ) -> None:
        # An address with a path, such as that of a proxy, is used as it is.
        self._url = url if urlsplit(url).path.strip("/") else url.rstrip("/") + "/webapi.htm"
        self._token = Secret(token) if isinstance(token, str) else token
        self._timeout_s = timeout_s
        self._http = HttpConnections(httpx.Timeout(timeout_s), tls, proxy=proxy, addresses=addresses)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    @reads_json
    async def topics(self) -> list[str]:
        """Return all topics except the system topics."""
        response = await self._master("admin_query_cluster_topic_view")
        return sorted({entry["topicName"] for entry in response["data"]} - SYSTEM_TOPICS)

    @reads_json
    async def partitions(self, topic: str) -> dict[int, int]:
        """Return the number of the topic's configured partitions on each Broker, by Broker id; empty if the topic does not exist.

        A Broker keeps a topic in one or more stores, and `numPartitions` counts the partitions of one store.
        """
        return {broker: partition_count(topic, entry) for broker, entry in (await self._topic_configs(topic)).items()}

    async def publishing_brokers(self, topic: str) -> set[int]:
        """Return the ids of the Brokers that accept messages of the topic by their configuration, whether or not they run."""
        modes = await self._modes()
        return {
            broker
            for broker, entry in (await self._topic_configs(topic)).items()
            if entry["acceptPublish"] and modes.get(broker) in (ONLINE, WRITE_ONLY)
        }

    @reads_json
    async def read_only_partitions(self, topic: str) -> list[str]:
        """Return the partitions at Brokers that deliver messages of the topic and accept none, by their configuration."""
        modes = await self._modes()
        configs = {
            broker: entry
            for broker, entry in (await self._topic_configs(topic)).items()
            if entry["acceptSubscribe"] and modes.get(broker) in (ONLINE, READ_ONLY)
        }
        read_only = {
            broker: entry for broker, entry in configs.items() if not entry["acceptPublish"] or modes[broker] == READ_ONLY
        }
        check_partitions(sum(partition_count(topic, entry) for entry in read_only.values()), f"topic {topic}")
        return [
            f"{broker}:{partition}"
            for broker, entry in read_only.items()
            for partition in partition_ids(entry["numPartitions"], entry["numTopicStores"])
        ]

    async def _modes(self) -> dict[int, str]:
        """Return the mode that administrators have given each Broker, by its id: ONLINE or another one."""
        response = await self._master("admin_query_broker_run_status")
        return {entry["brokerId"]: entry["manageStatus"] for entry in response["data"]}

    @reads_json
    async def brokers_without_consumers(self, topic: str) -> list[int]:
        """Return the ids of the Brokers that accept no consumers of the topic by their configuration (acceptSubscribe)."""
        return sorted(broker for broker, entry in (await self._topic_configs(topic)).items() if not entry["acceptSubscribe"])

    async def create(self, topic: str, partitions: int) -> None:
        """Create the topic, or add partitions until it has at least `partitions`; return when it accepts messages.

        Does not change a topic that has this number of partitions, or more. The Master keeps the other settings of each Broker,
        and refuses a lower number of partitions. Raises ClusterError (RETRY) without a change if a Broker of the topic is down.
        """
        while sum((before := await self.partitions(topic)).values()) < partitions:
            try:
                await self._add(topic, partitions)
            except ServerRefused:
                # The Master refuses what another client has done at the same time: a record that exists, a number that is set
                # already, or that is lower by now. Then the numbers are no longer those that we read.
                if await self.partitions(topic) == before:
                    raise
        await self._wait_until_ready(topic, partitions)

    async def check_change(self) -> None:
        """Raise ClusterError if no topic can be created now; FATAL if the token is missing or wrong. Changes nothing."""
        try:
            # The Master checks the token first, and then refuses this request anyway, since it has no Broker id.
            await self._change("admin_reload_broker_configure", modifyUser=USER)
        except ServerRefused as error:
            if UNAUTHORIZED in str(error):
                raise
        if not await self.brokers():
            raise ClusterError("no Broker is online to create topics at: start one, or retry later", Failure.RETRY)

    @reads_json
    async def is_forbidden(self, topic: str, group: str) -> bool:
        """Return True if only listed groups may consume the topic, and `group` is not listed."""
        response = await self._master("admin_query_topic_authorize_control", topicName=topic)
        return any(
            entry["isEnable"] and all(listed["groupName"] != group for listed in entry["authConsumeGroup"])
            for entry in response["data"]
            if entry["topicName"] == topic
        )

    @reads_json
    async def is_black_listed(self, topic: str, group: str) -> bool:
        """Return True if the group is in the topic's black list: the Master then assigns it none of the topic's partitions."""
        response = await self._master("admin_query_black_consumer_group_info", topicName=topic, groupName=group)
        return any((entry["topicName"], entry["groupName"]) == (topic, group) for entry in response["data"])

    @reads_json
    async def brokers(self) -> list[Node]:
        """Return the Brokers that administrators have set online, whether or not they run."""
        response = await self._master("admin_query_broker_run_status")
        online = [entry for entry in response["data"] if entry["manageStatus"] in (ONLINE, READ_ONLY, WRITE_ONLY)]
        return [Node(entry["brokerId"], f"http://{entry['brokerIp']}:{entry['brokerWebPort']}/broker.htm") for entry in online]

    @reads_json
    async def stored(self, topic: str, brokers: Collection[str] | None = None) -> dict[str, StoredRange]:
        """Return the range of stored offsets by partition name, at the Brokers with these ids, or at all.

        Partitions that never received a message may be missing.
        """
        ranges: dict[str, StoredRange] = {}
        for node in await self.brokers():
            if brokers is not None and str(node.id) not in brokers:
                continue
            response = await self._broker(node, "admin_query_broker_all_store_info", topicName=topic)
            for store in (store for entry in response["dataSet"] if entry["topicName"] == topic for store in entry["storeInfo"]):
                for partition in store["partitionInfo"]:
                    name = f"{node.id}:{partition['partitionId']}"
                    ranges[name] = StoredRange(partition["minOffset"], partition["maxOffset"])
        return ranges

    @reads_json
    async def groups(self, topic: str) -> list[str]:
        """Return the groups that have a committed offset on the topic or consume it now."""
        groups: set[str] = set()
        for node in await self.brokers():
            groups.update(group for group, offsets in (await self._offsets(node, topicName=topic)).items() if topic in offsets)
        return sorted(groups)

    @reads_json
    async def committed(self, topic: str, group: str) -> dict[str, int]:
        """Return the group's committed offsets by partition name, without partitions that have none."""
        offsets: dict[str, int] = {}
        for node in await self.brokers():
            offsets_by_group = await self._offsets(node, topicName=topic, groupName=group)
            for partition, offset in offsets_by_group.get(group, {}).get(topic, {}).items():
                offsets[f"{node.id}:{partition}"] = offset
        return offsets

    # --- topics -----------------------------------------------------------------------------------------------------

    async def _topic_configs(self, topic: str) -> dict[int, dict[str, Any]]:
        """Return the topic's configuration on each Broker, by Broker id."""
        response = await self._master("admin_query_topic_info", topicName=topic)
        configs = (topic_entry["topicInfo"] for topic_entry in response["data"] if topic_entry["topicName"] == topic)
        return {entry["brokerId"]: entry for entry in itertools.chain.from_iterable(configs)}

    @reads_json
    async def _add(self, topic: str, partitions: int) -> None:
        """Create the topic, or add partitions at its Brokers, so that it has at least `partitions`."""
        configs, running = await self._topic_configs(topic), await self._running_brokers()
        if configs:
            if down := sorted(configs.keys() - running):
                problem = f"topic {topic} gets no partitions while its Brokers {', '.join(map(str, down))} are down"
                raise ClusterError(f"{problem}: start them, or retry later", Failure.RETRY)
            existing = sum(partition_count(topic, entry) for entry in configs.values())
            numbers = _grown(configs, partitions - existing)
            method = "admin_modify_topic_info"
            user = "modifyUser"
        else:
            if not running:
                raise ClusterError(f"topic {topic} cannot be created: no Broker is online", Failure.RETRY)
            numbers = _shares(running, partitions)
            method = "admin_add_new_topic_record"
            user = "createUser"
        for broker, number in numbers.items():
            await self._change(method, topicName=topic, brokerId=broker, numPartitions=number, **{user: USER})
            # A Broker uses the changed configuration only after a reload.
            await self._change("admin_reload_broker_configure", brokerId=broker, modifyUser=USER)

    @reads_json
    async def _running_brokers(self) -> set[int]:
        """Return the ids of the online Brokers that send heartbeats; a killed Broker counts as running for up to 30 s."""
        response = await self._master("admin_query_broker_run_status")
        entries = [entry for entry in response["data"] if entry["manageStatus"] == "online"]
        return {entry["brokerId"] for entry in entries if entry["runStatus"] == "running"}

    async def _wait_until_ready(self, topic: str, partitions: int) -> None:
        """Wait until at least this number of the topic's partitions accepts messages. Raises RequestTimeout."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not await self._accepts_messages(topic, partitions):  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError as error:
            problem = f"topic {topic} does not serve {partitions} partitions after {READY_TIMEOUT_S:g} s: check its Brokers"
            raise RequestTimeout(problem) from error

    @reads_json
    async def _accepts_messages(self, topic: str, partitions: int) -> bool:
        response = await self._master("admin_query_topic_info", topicName=topic)
        return any(
            entry["isSrvAcceptPublish"] and entry["isSrvAcceptSubscribe"] and entry["totalRunNumPartCount"] >= partitions
            for entry in response["data"]
            if entry["topicName"] == topic
        )

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _offsets(self, node: Node, **parameters: object) -> dict[str, dict[str, dict[int, int]]]:
        """Return committed offsets (TubeMQ: confirmed offsets) by group, topic and partition.

        Brokers also list groups and topics that were deleted, for a while, with negative offsets.
        """
        response = await self._broker(node, "admin_query_offset", **parameters)
        offsets: dict[str, dict[str, dict[int, int]]] = {}
        for entry in response["dataSet"]:
            for sub in entry["subInfo"]:
                if found := {item["partitionId"]: item["curOffset"] for item in sub["offsets"] if item["curOffset"] >= 0}:
                    offsets.setdefault(entry["groupName"], {})[sub["topicName"]] = found
        return offsets

    async def _master(self, method: str, **parameters: object) -> dict[str, Any]:
        return await self._call(self._url, method, parameters, ())

    async def _change(self, method: str, **parameters: object) -> None:
        if self._token is None:
            raise ClusterError(
                f"{method} needs the Master's confModAuthToken: set admin_token (--at: &admin_token.file=PATH)",
                Failure.FATAL,
            )
        await self._call(self._url, method, parameters, [("confModAuthToken", await self._token.read())])

    async def _broker(self, node: Node, method: str, **parameters: object) -> dict[str, Any]:
        return await self._call(node.url, method, parameters, ())

    async def _call(
        self, url: str, method: str, parameters: dict[str, object], secret: Iterable[tuple[str, str]]
    ) -> dict[str, Any]:
        """Call a method and return the response; `secret` are (name, value) pairs of parameters that errors must not show."""
        form = {"method": method, **{name: str(value) for name, value in parameters.items()}, **dict(secret)}
        address = httpx.URL(url)
        request = f"{method} {parameters} at {address.copy_with(username=None, password=None)}"
        try:
            async with asyncio.timeout(self._timeout_s):  # httpx limits the pauses between bytes, not the whole call
                http_response = await self._http.request("POST", address, data=form)
            response: dict[str, Any] = parse_json(http_response)
            refused = [entry for entry in response.get("data", ()) if entry.get("success") is False]
            is_success = http_response.status_code == 200 and response["result"] and not refused
        except (httpx.TimeoutException, TimeoutError) as error:
            who = self._http.explain_timeout(error, address)
            raise RequestTimeout(f"{request}: {who} it within {self._timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise Unreachable(f"{request} failed: {self._http.explain_connecting(error, address)}") from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise RemoteProtocolError(
                f"{request}{self._http.proxy_note} got something that is not a TubeMQ response (HTTP {http_response.status_code})"
            ) from error
        if not is_success:
            text = "; ".join(str(entry.get("errInfo", entry)) for entry in refused) or str(response.get("errMsg", ""))
            raise ServerRefused(f"{request} was refused: {shorten(text)}", response.get("errCode", 0), Failure.FATAL)
        return response


def partition_count(topic: str, config: Mapping[str, Any]) -> int:
    """Return the number of a topic's partitions in a Broker's configuration. Raises RemoteProtocolError if it is impossible."""
    stores, partitions = config["numTopicStores"], config["numPartitions"]
    for number in (stores, partitions):
        check_partitions(number, f"topic {topic}")
    check_partitions(count := stores * partitions, f"topic {topic}")
    return int(count)


def _shares(brokers: Iterable[int], partitions: int) -> dict[int, int]:
    """Return the number of partitions of a new topic for each Broker, without those that get none.

    If the partitions do not divide evenly, the Brokers with the lowest ids get one more.
    """
    ids = sorted(brokers)
    shares = {broker: partitions // len(ids) + (index < partitions % len(ids)) for index, broker in enumerate(ids)}
    return {broker: share for broker, share in shares.items() if share}


def _grown(configs: dict[int, dict[str, Any]], missing: int) -> dict[int, int]:
    """Return the new number of partitions per store for each Broker that gets more, if `missing` partitions are added.

    More may be added than are missing, because a Broker adds the same number of partitions in each of its stores of the topic.
    """
    numbers = {}
    for brokers_left, (broker, entry) in zip(range(len(configs), 0, -1), configs.items(), strict=True):
        stores = entry["numTopicStores"]
        share = -(-missing // (brokers_left * stores))  # partitions to add in each store, rounded up
        if share > 0:
            numbers[broker] = entry["numPartitions"] + share
            missing -= share * stores
    return numbers
