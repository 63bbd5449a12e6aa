"""Calls of Pulsar's admin REST interface (base path /admin/v2), for operations without commands in the binary protocol."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.http_client import reads_json
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.admin.admin_http import HTTP_CONFLICT, HTTP_NOT_FOUND, AdminHttp
from mqbridge.pulsar.client.admin.admin_paths import (
    name_decoded_once,
    namespace_path,
    path_of,
    schema_path,
    subscription_path,
    tenant_path,
)
from mqbridge.pulsar.client.connection.auth import NO_AUTH, Auth
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.names import TopicName
from mqbridge.pulsar.wire.schemas import Schema, Types

INCOMPATIBLE = "schema compatibility check"
"""Part of a broker's error text for an incompatible schema."""


class TopicStats(NamedTuple):
    """Statistics of a topic, as sums over its partitions."""

    messages_in: int
    """Messages received since the broker loaded the topic."""
    bytes_in: int
    """Bytes received since the broker loaded the topic."""
    storage_bytes: int
    """Bytes of the stored data."""
    backlog: dict[str, int]
    """Subscription -> number of unacknowledged messages."""
    raw: dict[str, Any]
    """The whole response of the admin interface."""


class Admin:
    """Admin calls to one cluster. Every call may raise ClusterError; the `code` of a ServerRefused is the HTTP status.

    If the response of a call is lost, the call is repeated only if it is a GET or marked `idempotent`.

    `url` contains one address or several, see `parse_admin_url`. `timeout_s` limits one call, with all
    addresses that it tries. With `is_guess`, errors mention that the address was guessed. `proxy` is the address of a forward
    proxy; None: no proxy, whatever the environment says. `addresses` says where the servers can be reached.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        *,
        tls: Tls | None = None,
        auth: Auth = NO_AUTH,
        is_guess: bool = False,
        proxy: str | None = None,
        addresses: AddressMap = DIRECT,
    ) -> None:
        self.is_guess = is_guess
        """True if the address was derived from the service URL, not configured."""
        self._http = AdminHttp(url, timeout_s, tls=tls, auth=auth, is_guess=is_guess, proxy=proxy, addresses=addresses)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def call(self, method: str, path: str, body: Any = None, *, idempotent: bool = False) -> Any:
        """Make any call below /admin/v2; return the parsed response, None if it is empty.

        `idempotent` (always True for GET): if the connection fails during the call, the next address is tried, so the call may be
        executed twice. `body` is sent as JSON.
        """
        return await self._http.call(method, path, body, idempotent=idempotent)

    # --- tenants and namespaces -------------------------------------------------------------------------------------

    @reads_json
    async def clusters(self) -> list[str]:
        """Return the names of all clusters that this cluster knows, including its own name."""
        return list(await self.call("GET", "/clusters"))

    @reads_json
    async def tenants(self) -> list[str]:
        """Return all tenants."""
        return list(await self.call("GET", "/tenants"))

    async def create_tenant(self, tenant: str, clusters: Sequence[str]) -> None:
        """Create a tenant for these clusters. Raises ServerRefused with code 409 if it exists."""
        body = {"allowedClusters": list(clusters), "adminRoles": []}
        await self.call("PUT", tenant_path(tenant), body)

    async def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant, which must have no namespaces."""
        await self.call("DELETE", tenant_path(tenant))

    @reads_json
    async def namespaces(self, tenant: str | None = None) -> list[str]:
        """Return the namespaces of all tenants, or of one tenant, each as `tenant/namespace`."""
        namespaces: list[str] = []
        for each in [tenant] if tenant is not None else await self.tenants():
            namespaces += await self.call("GET", namespace_path(each))
        return namespaces

    async def create_namespace(self, namespace: str) -> None:
        """Create a namespace, given as `tenant/namespace`. Raises ServerRefused with code 409 if it exists."""
        await self.call("PUT", namespace_path(namespace))

    async def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace, which must have no topics."""
        await self.call("DELETE", namespace_path(namespace))

    async def policies(self, namespace: str) -> dict[str, Any]:
        """Return all policies of a namespace by their names in Pulsar; a policy that was never set is missing or null."""
        path = namespace_path(namespace)
        policies = await self.call("GET", path)
        if not isinstance(policies, dict):
            raise self._http.not_pulsar_error("GET", path)
        return policies

    async def set_policy(self, namespace: str, policy: str, value: Any) -> None:
        """Set a policy by its path, such as `deduplication` (true), `messageTTL` (3600) or `compactionThreshold` (0)."""
        method = "PUT" if policy in _PUT_POLICIES else "POST"
        await self.call(method, f"{namespace_path(namespace)}/{policy}", value, idempotent=True)

    async def set_deduplication(self, namespace: str, is_on: bool) -> None:
        """Enable or disable deduplication in a namespace; topics that are already loaded apply the change a moment later."""
        await self.set_policy(namespace, "deduplication", is_on)

    async def set_retention(self, namespace: str, minutes: int, megabytes: int) -> None:
        """Set for how many minutes and up to which size acknowledged data is retained in a namespace; -1 is unlimited."""
        body = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        await self.set_policy(namespace, "retention", body)

    # --- topics -----------------------------------------------------------------------------------------------------

    @reads_json
    async def topics(self, namespace: str) -> list[str]:
        """Return the full names of the persistent topics, each partition separately."""
        return list(await self.call("GET", namespace_path(namespace, under="/persistent")))

    @reads_json
    async def partitioned_topics(self, namespace: str) -> list[str]:
        """Return the full names of the partitioned topics."""
        return list(await self.call("GET", f"{namespace_path(namespace, under='/persistent')}/partitioned"))

    async def create(self, topic: TopicName, partitions: int) -> None:
        """Create a topic with this number of partitions, 0 for an unpartitioned topic.

        Raises ServerRefused with code 409 if it exists.
        """
        if partitions:
            await self.call("PUT", f"{path_of(topic)}/partitions", partitions)
        else:
            await self.call("PUT", path_of(topic))

    async def grow(self, topic: TopicName, partitions: int) -> None:
        """Increase the number of partitions of a topic to `partitions`."""
        await self.call("POST", f"{path_of(topic)}/partitions", partitions)

    @reads_json
    async def delete(self, topic: TopicName, *, force: bool = False) -> bool:
        """Delete a topic; with `force` also if it has subscriptions or producers. Return True if the topic existed."""
        try:
            partitions = (await self.call("GET", f"{path_of(topic)}/partitions"))["partitions"]
            path = f"{path_of(topic)}{'/partitions' if partitions else ''}?force={str(force).lower()}"
            await self.call("DELETE", path)
        except ServerRefused as error:
            if error.code == HTTP_NOT_FOUND:
                return False
            raise
        return True

    async def unload(self, topic: TopicName) -> None:
        """Unload a topic from its broker: its producers and consumers are closed and reconnect to its next owner."""
        await self.call("PUT", f"{path_of(topic)}/unload")

    async def terminate(self, topic: TopicName) -> None:
        """Terminate a topic or a partition: it accepts no more messages."""
        await self.call("POST", f"{path_of(topic)}/terminate")

    async def set_topic_policy(self, topic: TopicName, policy: str, value: Any) -> None:
        """Set a policy of one topic by its path, such as `deduplicationEnabled` (true)."""
        await self.call("POST", f"{path_of(topic)}/{policy}", value, idempotent=True)

    async def applied_policy(self, topic: TopicName, policy: str) -> Any:
        """Return the policy that an existing topic applies: its own, else its namespace's, else the broker's.

        None if there is none.
        """
        return await self.call("GET", f"{path_of(topic)}/{policy}?applied=true")

    @reads_json
    async def stats(self, topic: TopicName, partitions: int = 0) -> TopicStats:
        """Return the statistics of a topic; `partitions` is 0 for an unpartitioned topic or a single partition."""
        path = f"{path_of(topic)}/{'partitioned-stats?perPartition=false' if partitions else 'stats'}"
        stats = await self.call("GET", path)
        backlog = {name: int(each["msgBacklog"]) for name, each in stats["subscriptions"].items()}
        return TopicStats(int(stats["msgInCounter"]), int(stats["bytesInCounter"]), int(stats["storageSize"]), backlog, stats)

    @reads_json
    async def stats_by_partition(self, topic: TopicName, partitions: int) -> dict[str, dict[str, Any]]:
        """Return partition name -> raw statistics, with one call; `partitions` is 0 for an unpartitioned topic."""
        if not partitions:
            return {str(topic): (await self.stats(topic)).raw}
        return dict((await self.call("GET", f"{path_of(topic)}/partitioned-stats?perPartition=true"))["partitions"])

    @reads_json
    async def internal_stats(self, topic: TopicName) -> dict[str, Any]:
        """Return the ledgers and cursors of a partition or an unpartitioned topic."""
        return dict(await self.call("GET", f"{path_of(topic)}/internalStats"))

    @reads_json
    async def last_id(self, topic: TopicName) -> EntryId:
        """Return the id of the newest entry of a partition or an unpartitioned topic; the entry number is -1 if it is empty."""
        response = await self.call("GET", f"{path_of(topic)}/lastMessageId")
        return int(response["ledgerId"]), int(response["entryId"])

    @reads_json
    async def id_at(self, topic: TopicName, publish_time: int) -> EntryId:
        """Return the id of a partition's first entry that was published at this time or later (milliseconds since the epoch).

        If there is no such entry, the result may be before the first or after the last entry of the partition.
        """
        response = await self.call("GET", f"{path_of(topic)}/messageid/{publish_time}")
        return int(response["ledgerId"]), int(response["entryId"])

    # --- schemas ----------------------------------------------------------------------------------------------------

    @reads_json
    async def schema_definition(self, topic: TopicName) -> bytes | None:
        """Return the definition of the topic's latest schema; None if it has no schema."""
        try:
            return str((await self.call("GET", f"{schema_path(topic)}/schema"))["data"]).encode()
        except ServerRefused as error:
            if error.code == HTTP_NOT_FOUND:
                return None
            raise

    async def enforces_schemas(self, namespace: str) -> bool:
        """Return True if topics of the namespace that have a schema refuse producers without one."""
        return bool(await self.call("GET", f"/namespaces/{namespace}/schemaValidationEnforced?applied=true"))

    @reads_json
    async def is_compatible(self, topic: TopicName, schema: Schema) -> bool:
        """Return True if the schema is compatible with those of the topic, by the policy of its namespace."""
        body = {"type": Types.Type.Name(schema.type).upper(), "schema": schema.definition.decode(), "properties": {}}
        try:
            return bool((await self.call("POST", f"{schema_path(topic)}/compatibility", body))["compatibility"])
        except ServerRefused as error:
            if INCOMPATIBLE in str(error):  # brokers report an incompatible schema as an error of their own, with status 500
                return False
            raise

    # --- subscriptions ----------------------------------------------------------------------------------------------

    @reads_json
    async def subscriptions(self, topic: TopicName) -> list[str]:
        """Return the subscription names of a topic, partitioned or not."""
        return sorted(await self.call("GET", f"{path_of(topic)}/subscriptions"))

    @reads_json
    async def mark_delete_positions(self, topic: TopicName) -> Mapping[str, EntryId]:
        """Return subscription -> mark-delete position (all entries up to it are acknowledged).

        `topic` is a partition or an unpartitioned topic.
        """
        stats = await self.internal_stats(topic)
        # This response, unlike all others, encodes subscription names as in the query of a URL (a space as "+").
        return {unquote_plus(name): _entry_id(cursor["markDeletePosition"]) for name, cursor in stats["cursors"].items()}

    async def create_subscription(self, topic: TopicName, name: str, at: EntryId | None = None) -> None:
        """Create a subscription of a topic; it begins with entry `at`, or at the topic's end if `at` is None.

        With `at`, the topic must be a partition or an unpartitioned topic. Raises ServerRefused (409) if the name is taken.
        """
        body = None if at is None else _message_id(at)
        path = subscription_path(topic, name)
        if (other := name_decoded_once(name)) is None:
            await self.call("PUT", path, body)
            return
        before = await self.subscriptions(topic)
        if name in before:
            raise ServerRefused(f"subscription {name!r} of topic {topic} exists", HTTP_CONFLICT, Failure.REFUSED)
        if other in before:
            raise _ambiguous_error(topic, name, other)
        await self.call("PUT", path, body)
        if name not in (after := await self.subscriptions(topic)):
            if other in after:
                await self.call("DELETE", path)  # the same path, so it means the subscription that was just created
            problem = f"the server did not create subscription {name!r} of topic {topic}, but one with another name"
            raise ClusterError(f"{problem}: use a name without % and +", Failure.FATAL)

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool = False) -> None:
        """Delete a subscription; with `force` also if it has consumers."""
        path = await self._existing_subscription(topic, name)
        await self.call("DELETE", f"{path}?force={str(force).lower()}")

    async def reset_to_time(self, topic: TopicName, name: str, publish_time: int) -> None:
        """Reset a subscription of a topic, partitioned or not, to the first message published at this time or later.

        `publish_time` is in milliseconds since the epoch.
        """
        path = await self._existing_subscription(topic, name)
        await self.call("POST", f"{path}/resetcursor/{publish_time}", idempotent=True)

    async def reset_to(self, topic: TopicName, name: str, entry: EntryId) -> None:
        """Reset a subscription of a partition or an unpartitioned topic to this entry, which is then delivered first."""
        path = await self._existing_subscription(topic, name)
        await self.call("POST", f"{path}/resetcursor", _message_id(entry), idempotent=True)

    async def skip(self, topic: TopicName, name: str, messages: int) -> None:
        """Skip this number of messages of a partition or an unpartitioned topic, as if they were acknowledged."""
        await self.call("POST", f"{await self._existing_subscription(topic, name)}/skip/{messages}")

    async def skip_all(self, topic: TopicName, name: str) -> None:
        """Skip all messages of a topic, partitioned or not, as if they were acknowledged."""
        await self.call("POST", f"{await self._existing_subscription(topic, name)}/skip_all")

    async def expire(self, topic: TopicName, name: str, older_than_s: int) -> None:
        """Skip all messages of a topic, partitioned or not, that are older than `older_than_s` seconds (by publish time)."""
        await self.call("POST", f"{await self._existing_subscription(topic, name)}/expireMessages/{older_than_s}")

    async def _existing_subscription(self, topic: TopicName, name: str) -> str:
        """Return the path of a subscription for a call that changes it.

        If a server that decodes the name once would find another one at this path, the list of subscriptions decides: the path is
        used only if this subscription exists and the other does not. Raises ServerRefused (404) and ClusterError (FATAL).
        """
        path = subscription_path(topic, name)
        if (other := name_decoded_once(name)) is not None:
            existing = await self.subscriptions(topic)
            if name not in existing:
                raise ServerRefused(f"topic {topic} has no subscription {name!r}", HTTP_NOT_FOUND, Failure.FATAL)
            if other in existing:
                raise _ambiguous_error(topic, name, other)
        return path


def _ambiguous_error(topic: TopicName, name: str, other: str) -> ClusterError:
    problem = f"subscriptions {name!r} and {other!r} of topic {topic} could be taken for each other in the admin interface"
    return ClusterError(f"{problem}. Nothing was changed; use the tools of Pulsar, or delete one of them", Failure.FATAL)


def _message_id(entry: EntryId) -> dict[str, Any]:
    return {"ledgerId": entry[0], "entryId": entry[1], "partitionIndex": -1}  # -1: the path of the call names the partition


def _entry_id(text: str) -> EntryId:
    """Parse a position of the form `ledger:entry`."""
    ledger, entry = text.split(":")
    return int(ledger), int(entry)


_PUT_POLICIES = frozenset({"schemaCompatibilityStrategy"})
"""Policies that are set by PUT; all others are set by POST."""
