"""The administrators' HTTP API of the Master and the Brokers: what the RPC protocol has no call for.

Every answer has `result` and `errCode`; a good one still may hold entries with `success: false`. Calls that change something need
the Master's confModAuthToken. `admin_query_group_offset` is not used: asking it about a group makes that group start at 0.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError, RequestTimeout, ServerRefused, Unreachable
from mqbridge.net.tls.tls import Tls
from mqbridge.net.web import HttpConnections
from mqbridge.secret import Secret

TIMEOUT_S = 10.0
READY_TIMEOUT_S = 90.0
"""A new topic opens after the Broker's next heartbeats, on some versions only after a fixed 35 s."""
READY_POLL_S = 0.5
USER = "mqbridge"
UNAUTHORIZED = "unauthorized"
"""In the text of the refusal of a wrong token, which has no code of its own."""
SYSTEM_TOPICS = frozenset({"__offset_history__"})


class Node(NamedTuple):
    """A Broker that is online."""

    id: int
    url: str


class StoredRange(NamedTuple):
    """First and next offset of a partition."""

    first: int
    next: int


class Admin:
    """One cluster's admin API. `url` is the Master's web address; `token` its confModAuthToken, needed only to create topics.

    `tls` is for an `https` address, that of a proxy in front of the Master: the servers' own web interfaces have none, and those
    of the Brokers are asked without.

    Raises Unreachable, RequestTimeout, ServerRefused (FATAL) and RemoteProtocolError for answers that are none. The proxy of the
    environment is not used: these servers are inside.
    """

    def __init__(
        self, url: str, token: Secret | str | None = None, *, timeout_s: float = TIMEOUT_S, tls: Tls | None = None
    ) -> None:
        self._url = url if urlsplit(url).path.strip("/") else url.rstrip("/") + "/webapi.htm"
        self._token = Secret(token) if isinstance(token, str) else token
        self._http = HttpConnections(httpx.Timeout(timeout_s), tls or Tls(), trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def topics(self) -> list[str]:
        """Every topic but the system's own."""
        answer = await self._master("admin_query_cluster_topic_view")
        return sorted({entry["topicName"] for entry in answer["data"]} - SYSTEM_TOPICS)

    async def partitions(self, topic: str) -> dict[int, int]:
        """Configured partitions by Broker, all stores together; empty for a topic that does not exist."""
        return {
            broker: entry["numPartitions"] * entry["numTopicStores"] for broker, entry in (await self._deployed(topic)).items()
        }

    async def create(self, topic: str, partitions: int) -> None:
        """Create the topic, or grow it to at least so many partitions, and wait until it accepts messages."""
        deployed = await self._deployed(topic)
        nodes = await self.brokers()
        have = sum(entry["numPartitions"] * entry["numTopicStores"] for entry in deployed.values())
        if have < partitions:
            changed = await (self._grow(topic, partitions - have, deployed) if deployed else self._add(topic, partitions, nodes))
            for broker in changed:
                await self._change("admin_reload_broker_configure", brokerId=broker, modifyUser=USER)
        await self._opened(topic, partitions)

    async def check_change(self) -> None:
        """Whether topics could be made now; changes nothing. Raises ClusterError: FATAL for a token that is missing or wrong."""
        try:
            # It names no Broker, so it is refused in any case; the Master looks at the token first.
            await self._change("admin_reload_broker_configure", modifyUser=USER)
        except ServerRefused as error:
            if UNAUTHORIZED in str(error):
                raise
        if not await self.brokers():
            raise ClusterError("no Broker is online", Failure.RETRY)

    async def forbidden(self, topic: str, group: str) -> bool:
        """Whether the topic is for listed groups only, and this one is not listed."""
        answer = await self._master("admin_query_topic_authorize_control", topicName=topic)
        return any(
            entry["isEnable"] and all(listed["groupName"] != group for listed in entry["authConsumeGroup"])
            for entry in answer["data"]
        )

    async def brokers(self) -> list[Node]:
        """The Brokers that are online."""
        answer = await self._master("admin_query_broker_run_status")
        online = [entry for entry in answer["data"] if entry["manageStatus"] == "online"]
        return [Node(entry["brokerId"], f"http://{entry['brokerIp']}:{entry['brokerWebPort']}/broker.htm") for entry in online]

    async def stored(self, topic: str) -> dict[str, StoredRange]:
        """First and next offset by partition name. A partition that nothing was ever sent to may be missing."""
        found: dict[str, StoredRange] = {}
        for node in await self.brokers():
            answer = await self._broker(node, "admin_query_broker_all_store_info", topicName=topic)
            for store in (store for entry in answer["dataSet"] for store in entry["storeInfo"]):
                for partition in store["partitionInfo"]:
                    name = f"{node.id}:{partition['partitionId']}"
                    found[name] = StoredRange(partition["minOffset"], partition["maxOffset"])
        return found

    async def groups(self, topic: str) -> list[str]:
        """Groups that have an offset on the topic, or consume it now."""
        found: set[str] = set()
        for node in await self.brokers():
            found.update(group for group, offsets in (await self._offsets(node, topicName=topic)).items() if topic in offsets)
        return sorted(found)

    async def committed(self, topic: str, group: str) -> dict[str, int]:
        """The group's confirmed offset by partition name, where it has one."""
        found: dict[str, int] = {}
        for node in await self.brokers():
            offsets = await self._offsets(node, topicName=topic, groupName=group)
            for partition, offset in offsets.get(group, {}).get(topic, {}).items():
                found[f"{node.id}:{partition}"] = offset
        return found

    # --- topics -----------------------------------------------------------------------------------------------------

    async def _deployed(self, topic: str) -> dict[int, dict[str, Any]]:
        answer = await self._master("admin_query_topic_info", topicName=topic)
        return {entry["brokerId"]: entry for found in answer["data"] for entry in found["topicInfo"]}

    async def _add(self, topic: str, partitions: int, nodes: list[Node]) -> list[int]:
        """Spread the partitions over the Brokers; the first ones get one more where it does not divide."""
        if not nodes:
            raise ClusterError(f"topic {topic} cannot be created: no Broker is online", Failure.RETRY)
        changed = []
        for place, node in enumerate(nodes):
            share = partitions // len(nodes) + (place < partitions % len(nodes))
            if share:
                record = {"topicName": topic, "brokerId": node.id, "numPartitions": share, "createUser": USER}
                await self._change("admin_add_new_topic_record", **record)
                changed.append(node.id)
        return changed

    async def _grow(self, topic: str, missing: int, deployed: dict[int, dict[str, Any]]) -> list[int]:
        """More partitions on each Broker that has the topic; at least as many as are missing."""
        changed = []
        for left, (broker, entry) in zip(range(len(deployed), 0, -1), deployed.items(), strict=True):
            stores = entry["numTopicStores"]
            share = -(-missing // (left * stores))
            if share > 0:
                record = {
                    "topicName": topic,
                    "brokerId": broker,
                    "numPartitions": entry["numPartitions"] + share,
                    "modifyUser": USER,
                }
                await self._change("admin_modify_topic_info", **record)
                changed.append(broker)
                missing -= share * stores
        return changed

    async def _opened(self, topic: str, partitions: int) -> None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not await self._serves(topic, partitions):  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError as error:
            problem = (
                f"topic {topic} was configured but does not accept messages after {READY_TIMEOUT_S:g} s: look at its Brokers"
            )
            raise RequestTimeout(problem) from error

    async def _serves(self, topic: str, partitions: int) -> bool:
        answer = await self._master("admin_query_topic_info", topicName=topic)
        return any(
            entry["isSrvAcceptPublish"] and entry["isSrvAcceptSubscribe"] and entry["totalRunNumPartCount"] >= partitions
            for entry in answer["data"]
        )

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _offsets(self, node: Node, **parameters: object) -> dict[str, dict[str, dict[int, int]]]:
        """Confirmed offsets by group, topic and partition."""
        answer = await self._broker(node, "admin_query_offset", **parameters)
        return {
            entry["groupName"]: {
                sub["topicName"]: {item["partitionId"]: item["curOffset"] for item in sub["offsets"]} for sub in entry["subInfo"]
            }
            for entry in answer["dataSet"]
        }

    async def _master(self, method: str, **parameters: object) -> dict[str, Any]:
        return await self._call(self._url, method, parameters, ())

    async def _change(self, method: str, **parameters: object) -> None:
        if self._token is None:
            raise ClusterError(
                f"{method} needs the Master's confModAuthToken: set admin_token (--at: &admin_token.file=PATH)", Failure.FATAL
            )
        await self._call(self._url, method, parameters, [("confModAuthToken", await self._token.read())])

    async def _broker(self, node: Node, method: str, **parameters: object) -> dict[str, Any]:
        return await self._call(node.url, method, parameters, ())

    async def _call(
        self, url: str, method: str, parameters: dict[str, object], secret: Iterable[tuple[str, str]]
    ) -> dict[str, Any]:
        form = {"method": method, **{name: str(value) for name, value in parameters.items()}, **dict(secret)}
        address = httpx.URL(url)
        what = f"{method} {parameters} at {address.copy_with(username=None, password=None)}"
        try:
            response = await self._http.request("POST", address, data=form)
            answer: dict[str, Any] = response.json()
            refused = [entry for entry in answer.get("data", ()) if entry.get("success") is False]
            good = response.status_code == 200 and answer["result"] and not refused
        except httpx.TimeoutException as error:
            raise RequestTimeout(f"{what} was not answered in time") from error
        except httpx.HTTPError as error:
            why = self._http.explain(error, address.host) or str(error) or type(error).__name__
            raise Unreachable(f"{what} failed: {why}") from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise RemoteProtocolError(f"{what} was answered with HTTP {response.status_code} and no TubeMQ answer") from error
        if not good:
            said = "; ".join(str(entry.get("errInfo", entry)) for entry in refused) or answer.get("errMsg", "")
            raise ServerRefused(f"{what} was refused: {said}", answer.get("errCode", 0), Failure.FATAL)
        return answer
