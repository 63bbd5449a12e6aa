"""Configuration of a Pulsar cluster, and of the sources and targets of routes there."""

import json
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_serializer, field_validator, model_validator

from mqbridge.adapter.names import NameRule
from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.addresses import ADDRESSES_DESCRIPTION, Addresses
from mqbridge.config.proxy import PROXY_DESCRIPTION, AdminProxy
from mqbridge.config.tls import TlsChoice, TlsOptions
from mqbridge.config.units import Duration, Size
from mqbridge.config.urls import ADMIN_SHORT_NAME, join_addresses, server_identities, split_url
from mqbridge.errors import ConfigError
from mqbridge.net.addresses import AddressMap
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.adapter.auth import AuthOptions
from mqbridge.pulsar.client.admin.admin_addresses import SCHEMES, parse_admin_url
from mqbridge.pulsar.client.connection.service_url import SCHEME, TLS_SCHEME, parse_service_url
from mqbridge.pulsar.wire.compression import CodecName
from mqbridge.pulsar.wire.entry import MAX_BATCH_MESSAGES
from mqbridge.pulsar.wire.names import DEFAULT_NAMESPACE, parse_topic

ADMIN_PORT, ADMIN_TLS_PORT = 8080, 8443
"""Default ports of a broker's REST interface."""
ADMIN_SCHEME, ADMIN_TLS_SCHEME = SCHEMES
"""`http://` and `https://`."""


MAX_NAME_CHARS = 1000
"""Maximum length of a name of a topic or a group: with each character escaped, it fits into the path of a web request."""
TOPIC_NAME = NameRule(
    re.compile(r"[^/\s\x00-\x1f\x7f]"),
    re.compile(r"[^/\x00-\x1f\x7f]"),
    MAX_NAME_CHARS,
    f"a topic's own name in Pulsar has at most {MAX_NAME_CHARS} characters, none of them a slash or a control character",
)
"""The own names of topics, without tenant and namespace.

A name that ends like that of a partition is valid, but brokers create no partitioned topic with it."""
GROUP_NAME = NameRule(
    re.compile(r"[^\x00-\x1f\x7f]"),
    re.compile(r"[^\x00-\x1f\x7f]"),
    MAX_NAME_CHARS,
    f"a subscription's name has at most {MAX_NAME_CHARS} characters, none of them a control character",
)


class PulsarCluster(ClusterModel):
    """The configuration of one Pulsar cluster."""

    model_config = ConfigDict(hide_input_in_errors=True)

    service_url: str = Field(
        description="`pulsar://host:6650`, or `pulsar+ssl://host:6651` for TLS; several hosts are separated by commas and tried"
        " in turn."
    )
    admin_url: str | None = Field(
        default=None,
        repr=False,
        description="`http://host:8080`, or `https://host:8443` (with the same `tls`), the REST interface of any broker:"
        " redirects to the owner of a topic are followed."
        " Several hosts are separated by commas (`http://a:8080,b:8080`): the next one is tried when one cannot be reached."
        " Without it, topics can only be auto-created by the broker, only topics of the default namespace are listed, groups and"
        " their positions cannot be read, and the retention of a target cannot be checked.",
    )
    admin_proxy: AdminProxy = Field(default=None, repr=False, description=PROXY_DESCRIPTION)
    listener_name: str | None = Field(
        default=None,
        min_length=1,
        description="The listener of `advertisedListeners` whose addresses the gateway uses, for clients outside of the brokers'"
        " network. Without it, brokers return the addresses of their internal listener.",
    )
    addresses: Addresses = Field(default_factory=AddressMap, description=ADDRESSES_DESCRIPTION)
    namespace: str = Field(default=DEFAULT_NAMESPACE, description="`tenant/namespace` of topics whose name has none.")
    tls: TlsChoice = Field(
        default=None,
        description="Encryption of connections, for `pulsar+ssl://` and `https://` alike; without it these schemes use TLS with"
        " all defaults.",
    )
    auth: AuthOptions | None = Field(default=None, description="The credentials of the gateway.")
    operation_timeout: Duration = Field(
        default=30.0,
        gt=0,
        description="Deadline of an operation (open a producer or consumer, read metadata) with all its retries.",
    )
    request_timeout: Duration = Field(default=10.0, gt=0, description="Deadline of one response of a broker.")
    connect_timeout: Duration = Field(default=10.0, gt=0, description="Deadline of a connection with its handshake.")
    keep_alive: Duration = Field(
        default=30.0,
        ge=0.1,
        description="Interval between pings; a connection on which nothing arrives between two pings is closed.",
    )
    refresh: Duration = Field(default=60.0, ge=0.1, description="Interval between checks for new partitions of consumed topics.")

    _admin_is_guessed: bool = PrivateAttr(default=False)

    @field_validator("service_url")
    @classmethod
    def _check_service_url(cls, url: str) -> str:
        parse_service_url(url, tls=url.startswith(TLS_SCHEME))
        return url

    @field_validator("admin_url")
    @classmethod
    def _check_admin_url(cls, url: str | None) -> str | None:
        if url is not None:
            parse_admin_url(url)
        return url and url.rstrip("/")

    @field_serializer("admin_url")
    def _strip_user(self, url: str | None) -> str | None:
        """Leave out user and password of the URL when the configuration is shown."""
        return url and re.sub(r"://[^/,]*@", "://", url)

    @field_validator("namespace")
    @classmethod
    def _check_namespace(cls, namespace: str) -> str:
        parse_topic("x", namespace)  # raises ValueError for an invalid namespace
        return namespace

    @model_validator(mode="after")
    def _check_tls_and_auth(self) -> Self:
        if self.tls is not None and not self.is_tls:
            address = self.service_url.removeprefix(SCHEME)
            advice = f"write {TLS_SCHEME}{address}, with the port for TLS (usually 6651)"
            raise ValueError(f"tls is given, but service_url is without TLS: {advice}")
        # `tls` is None for `tls: off` and for a missing option; `model_fields_set` contains only options that are given.
        if self.tls is None and "tls" in self.model_fields_set and self.is_tls:
            raise ValueError(f"tls is off, but service_url begins with {TLS_SCHEME}: leave out tls, or write {SCHEME}")
        if self.auth is not None and self.auth.method == "tls" and self.certificate is None:
            raise ValueError("auth by method tls needs the gateway's certificate: give tls.certificate and tls.key")
        return self

    @property
    def identity(self) -> str:
        """The brokers' addresses, and the namespace of short topic names unless it is the default one."""
        servers = join_addresses("pulsar", parse_service_url(self.service_url, tls=self.is_tls))
        return servers if self.namespace == DEFAULT_NAMESPACE else f"{servers}/{self.namespace}"

    @property
    def server_identities(self) -> frozenset[str]:
        """The address of each configured broker or proxy."""
        return server_identities("pulsar", parse_service_url(self.service_url, tls=self.is_tls))

    def check_topic_name(self, topic: str) -> None:
        """Raise ConfigError if the text is no topic name."""
        try:
            parse_topic(topic, self.namespace)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def full_topic_name(self, topic: str) -> str:
        """Return `domain://tenant/namespace/topic`, without the suffix of a partition."""
        try:
            return str(parse_topic(topic, self.namespace).parent)
        except ValueError:
            return topic

    def listed_topic_name(self, topic: str) -> str:
        """Return the short name with respect to the default namespace, without the suffix of a partition."""
        try:
            return parse_topic(topic, self.namespace).parent.short(self.namespace)
        except ValueError:
            return topic

    @property
    def is_tls(self) -> bool:
        """True if brokers are reached by TLS."""
        return self.service_url.startswith(TLS_SCHEME)

    @property
    def sends_credentials_unencrypted(self) -> bool:
        """True if credentials other than a TLS certificate are sent over a connection without TLS."""
        has_plaintext = not self.is_tls or (self.admin_url is not None and not self.admin_url.startswith(ADMIN_TLS_SCHEME))
        return has_plaintext and self.auth is not None and self.auth.method != "tls"

    @property
    def certificate(self) -> Path | None:
        """File of the gateway's client certificate; None without one."""
        return None if self.tls is None else self.tls.certificate

    def make_tls(self, cluster: str) -> Tls | None:
        """Make the TLS state for brokers and the REST interface; None if neither uses TLS. `cluster` is the name, for the log."""
        is_admin_tls = self.admin_url is not None and self.admin_url.startswith(ADMIN_TLS_SCHEME)
        if self.tls is None and not self.is_tls and not is_admin_tls:
            return None
        return (self.tls or TlsOptions()).make(cluster)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Parse `pulsar[+ssl]://host:6650[,host:6650][?admin=http://host:8080&NAME=VALUE]`.

        Without `admin`, the REST interface is assumed to be at the default port of the same hosts.
        """
        service, settings = split_url(url, cls, excluded={"service_url"}, short_names=ADMIN_SHORT_NAME)
        if "admin_url" in settings:
            return cls.model_validate(settings | {"service_url": service})
        is_tls = service.startswith(TLS_SCHEME)
        hosts = dict.fromkeys(address.host for address in parse_service_url(service, tls=is_tls))
        scheme, port = (ADMIN_TLS_SCHEME, ADMIN_TLS_PORT) if is_tls else (ADMIN_SCHEME, ADMIN_PORT)
        guessed = ",".join(f"{scheme}[{host}]:{port}" if ":" in host else f"{scheme}{host}:{port}" for host in hosts)
        cluster = cls.model_validate(settings | {"service_url": service, "admin_url": guessed})
        cluster._admin_is_guessed = True  # noqa: SLF001 - a private field of this class
        return cluster

    @property
    def admin_is_guessed(self) -> bool:
        """True if `admin_url` was derived from the service URL, so nothing may listen there."""
        return self._admin_is_guessed


class PulsarInboundOptions(BaseModel):
    """Options of a source in Pulsar."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subscription_type: Literal["failover", "exclusive", "shared", "key_shared"] = Field(
        default="failover",
        description="`failover` and `exclusive` keep the order of a partition and acknowledge cumulatively; with `failover`"
        " another instance takes over. `shared` and `key_shared` distribute a partition's entries over the instances.",
    )
    consumer_name: str = Field(default="", description="Name shown by the broker; empty makes a unique one.")
    batch_bytes: Size = Field(
        default=1 << 20, ge=1, le=64 << 20, description="Maximum size of the received entries that are passed on together."
    )


class PulsarOutboundOptions(BaseModel):
    """Options of a target in Pulsar."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compression: CodecName = Field(default="none", description="Compression of every entry.")
    batch_messages: int = Field(
        default=5000, ge=1, le=MAX_BATCH_MESSAGES, description="Maximum number of messages in an entry (a Pulsar batch)."
    )
    batch_bytes: Size = Field(
        default=512 << 10,
        ge=1,
        le=64 << 20,
        description="Maximum size of an entry before compression; a larger message gets an entry of its own.",
    )
    chunking: bool = Field(
        default=True,
        description="Store a message above the broker's `maxMessageSize` in chunks. Consumers of Shared subscriptions need"
        " brokers of 2.11 or later; Key_Shared subscriptions and compaction do not support chunks. `false` refuses such a"
        " message: it becomes a dead letter. So does, with `admin_url`, a topic with a compaction threshold.",
    )
    key_hash: Literal["java", "murmur3"] = Field(
        default="java",
        description="Hash of keys that chooses a partition; use the one of the topic's other producers. `java` is the default in"
        " Java, `murmur3` exists in all clients.",
    )
    producer_name: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the producer of every partition, for deduplication by the broker; only one instance at a time may"
        " use it. Without it the broker generates one.",
    )
    restore_entries: bool = Field(
        default=False,
        description="Put dead letters of unreadable messages (with the property `mqbridge.raw: pulsar.entry.v1`) back as the"
        " entries that they were: encrypted ones with their keys and parameters, chunks as chunks. `false` copies them as they"
        " are. Set it only for a source of dead letters, because such an entry has the metadata that its producer chose.",
    )
    batch_by_key: bool = Field(
        default=False,
        description="Put messages of different keys into different entries, as Key_Shared consumers of the target need it:"
        " brokers dispatch an entry by the key of its first message. The order of a key is kept, not that of different keys."
        " Not for mirrors on Spark, which resume after the last stored message.",
    )
    schema_type: Literal["none", "topic", "string", "json", "avro"] = Field(
        default="none",
        description="Schema of the producers, for targets that refuse producers without one. `topic`: the latest schema of the"
        " target topic. Payloads are neither checked nor changed.",
    )
    schema_definition: str | None = Field(
        default=None, min_length=2, description="With `schema_type` `json` or `avro`: the Avro schema, as JSON text."
    )
    access: Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"] = Field(
        default="shared",
        description="Which other producers a partition may have: any, or none (fail, wait for their end, or close them).",
    )
    producer_properties: dict[str, str] = Field(
        default_factory=dict, description="Properties that the target topic's statistics show with the producers."
    )

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        needs_definition = self.schema_type in {"json", "avro"}
        if needs_definition != (self.schema_definition is not None):
            raise ValueError(
                f"schema_type {self.schema_type} needs a schema_definition"
                if needs_definition
                else f"schema_definition is not used with schema_type {self.schema_type}: remove it, or write json or avro"
            )
        if self.schema_definition is not None:
            try:
                json.loads(self.schema_definition)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"schema_definition is not JSON: {error}") from error
        return self
