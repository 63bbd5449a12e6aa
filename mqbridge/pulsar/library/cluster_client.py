"""Base class of the Pulsar client: connections, requests about topics and schemas, and its open producers and consumers."""

from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.library.cluster_url import parse_cluster_url
from mqbridge.library.contract import CLOSE_TIMEOUT_S
from mqbridge.library.opening import Closable, OpenedByClient, Opening
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.base_client import BaseClient, Timing
from mqbridge.pulsar.client.connection.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.connection.connection import HANDSHAKE_TIMEOUT_S, KEEP_ALIVE_S
from mqbridge.pulsar.client.connection.lookup import REQUEST_TIMEOUT_S
from mqbridge.pulsar.client.connection.schema_registry import RegisteredSchema
from mqbridge.pulsar.client.connection.service_url import DEFAULT_PORT, DEFAULT_TLS_PORT, Address
from mqbridge.pulsar.client.producer.entry_producer import OPEN_TIMEOUT_S
from mqbridge.pulsar.library.topic_names import full_name
from mqbridge.pulsar.wire.names import DEFAULT_NAMESPACE
from mqbridge.pulsar.wire.schemas import Schema

T = TypeVar("T", bound=Closable)


class ClusterClient:
    """The base class of `PulsarClient`, which documents the arguments."""

    def __init__(
        self,
        url: str,
        *,
        tls: Tls | None = None,
        auth: Auth = NO_AUTH,
        admin_url: str | None = None,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        operation_timeout_s: float = OPEN_TIMEOUT_S,
        connect_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        cluster_url = parse_cluster_url(url, "pulsar", DEFAULT_PORT, tls, DEFAULT_TLS_PORT)
        timing = Timing(operation_timeout_s, request_timeout_s, connect_timeout_s, keep_alive_s)
        self._base = BaseClient([Address(*each) for each in cluster_url.addresses], tls=cluster_url.tls, auth=auth, timing=timing)
        self._timing, self._tls, self._auth, self._admin_url = timing, tls, auth, admin_url
        self._admin: Admin | None = None
        self._brokers = ", ".join(f"{host}:{port}" for host, port in cluster_url.addresses)
        """The addresses in the URL, for errors."""
        self._opened = OpenedByClient()
        self._closed = False

    # --- topics and schemas -----------------------------------------------------------------------------------------

    async def connect(self) -> str:
        """Connect now; return the server's version. Raises ClusterError."""
        return await self._base.connect()

    async def partitions(self, topic: str) -> int | None:
        """Return the number of partitions: 0 for an unpartitioned topic, None if it does not exist. Raises ClusterError."""
        return await self._base.partitions(full_name(topic))

    async def topics(self, namespace: str = DEFAULT_NAMESPACE) -> list[str]:
        """Return the full names of the persistent topics of a namespace, each partition by itself. Raises ClusterError."""
        return await self._base.topics(namespace)

    async def schema(self, topic: str, version: bytes | None = None) -> RegisteredSchema | None:
        """Return this version of the topic's schema, or the latest without a version; None if missing. Raises ClusterError."""
        return await self._base.schema(full_name(topic), version)

    async def register_schema(self, topic: str, schema: Schema) -> bytes:
        """Add a schema to an existing topic; return the schema's version. Raises ClusterError, FATAL if it is incompatible."""
        return await self._base.register_schema(full_name(topic), schema)

    @property
    def admin(self) -> Admin:
        """The REST client for tenants, namespaces, topics and subscriptions. Raises ConfigError without `admin_url`."""
        if self._admin is None:
            if self._admin_url is None:
                raise ConfigError("the client has no admin_url: open the client with one, such as http://host:8080")
            self._admin = Admin(self._admin_url, self._timing.operation, tls=self._tls, auth=self._auth)
        return self._admin

    # --- opening and closing ----------------------------------------------------------------------------------------

    def _opening(self, open_resource: Callable[[], Coroutine[Any, Any, T]]) -> Opening[T]:
        """Return the `Opening` of a producer, consumer or reader, which closing the client will close too."""

        async def open_and_register() -> T:
            if self._closed:
                raise self._closed_error()
            opened = await open_resource()
            if self._closed:  # the client was closed in the meantime
                await opened.close(timeout=0.0)
                raise self._closed_error()
            self._opened.add(opened)
            return opened

        return Opening(open_and_register)

    def _closed_error(self) -> ClusterError:
        return ClusterError(f"the client is closed (brokers: {self._brokers})", Failure.FATAL)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close all producers, consumers and readers within `timeout` seconds, the newest first; then close the connections."""
        self._closed = True
        try:
            await self._opened.close(timeout)
        finally:
            await self._base.close()
            if self._admin is not None:
                await self._admin.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
