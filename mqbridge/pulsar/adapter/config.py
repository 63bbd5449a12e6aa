"""The configuration of a Pulsar cluster, and of the routes' ends at it."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_serializer, field_validator, model_validator

from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.tls import TlsChoice, TlsOptions
from mqbridge.config.units import Duration, Size
from mqbridge.config.urls import ADMIN, split_url
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.adapter.auth import AuthOptions
from mqbridge.pulsar.client.admin_addresses import SCHEMES, parse_admin_url
from mqbridge.pulsar.client.pool import SCHEME, TLS_SCHEME, parse_service_url
from mqbridge.pulsar.wire.compression import CodecName
from mqbridge.pulsar.wire.names import DEFAULT_NAMESPACE, parse_topic

ADMIN_PORT, ADMIN_TLS_PORT = 8080, 8443
ADMIN_TLS_SCHEME = "https://"


class PulsarCluster(ClusterModel):
    """A Pulsar cluster."""

    model_config = ConfigDict(hide_input_in_errors=True)

    service_url: str = Field(
        description="`pulsar://host:6650`, or `pulsar+ssl://host:6651` for TLS; several hosts with commas between them, which are"
        " tried in turn."
    )
    admin_url: str | None = Field(
        default=None,
        repr=False,
        description="`http://host:8080`, or `https://host:8443` (with the same `tls`), the REST interface of any broker: calls"
        " are followed to the one that owns a topic."
        " Several hosts with commas between them (`http://a:8080,b:8080`): the next is asked when one cannot be reached."
        " Without it topics can be created only as the broker creates them by itself, only those of the default namespace are"
        " listed, groups and their positions cannot be read, and whether a target keeps its messages cannot be told.",
    )
    namespace: str = Field(default=DEFAULT_NAMESPACE, description="`tenant/namespace` of topics that are named without one.")
    tls: TlsChoice = Field(
        default=None,
        description="How connections are encrypted, for `pulsar+ssl://` and `https://` alike; these schemes switch TLS on with"
        " all defaults where it is not given.",
    )
    auth: AuthOptions | None = Field(default=None, description="The credentials of the gateway.")
    operation_timeout: Duration = Field(
        default=30.0, gt=0, description="For opening something or asking for metadata, with all repetitions."
    )
    request_timeout: Duration = Field(default=10.0, gt=0, description="For one answer of a broker.")
    connect_timeout: Duration = Field(default=10.0, gt=0, description="For a connection and its handshake.")
    keep_alive: Duration = Field(
        default=30.0, ge=0.1, description="Time between pings; a broker that is silent from one to the next is given up."
    )
    refresh: Duration = Field(default=60.0, ge=0.1, description="Time between looks for new partitions of consumed topics.")

    _admin_is_guessed: bool = PrivateAttr(default=False)

    @field_validator("service_url")
    @classmethod
    def _is_service_url(cls, url: str) -> str:
        parse_service_url(url, tls=url.startswith(TLS_SCHEME))
        return url

    @field_validator("admin_url")
    @classmethod
    def _is_admin_url(cls, url: str | None) -> str | None:
        if url is not None:
            parse_admin_url(url)
        return url and url.rstrip("/")

    @field_serializer("admin_url")
    def _without_user(self, url: str | None) -> str | None:
        return url and re.sub(r"://[^/,]*@", "://", url)

    @field_validator("namespace")
    @classmethod
    def _is_namespace(cls, namespace: str) -> str:
        parse_topic("x", namespace)
        return namespace

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.tls is not None and not self.is_tls:
            address = self.service_url.removeprefix(SCHEME)
            advice = f"write {TLS_SCHEME}{address}, with the port for TLS (usually 6651)"
            raise ValueError(f"tls is given, and service_url is without: {advice}")
        if self.tls is None and "tls" in self.model_fields_set and self.is_tls:
            raise ValueError(f"tls is off, and service_url begins with {TLS_SCHEME}")
        if self.auth is not None and self.auth.method == "tls" and self.certificate is None:
            raise ValueError("auth by method tls needs the gateway's certificate: give tls.certificate and tls.key")
        return self

    @property
    def is_tls(self) -> bool:
        """Whether brokers are reached by TLS."""
        return self.service_url.startswith(TLS_SCHEME)

    @property
    def sends_openly(self) -> bool:
        """Whether credentials that are sent as they are go over a connection that is not encrypted."""
        is_open = not self.is_tls or (self.admin_url is not None and not self.admin_url.startswith(ADMIN_TLS_SCHEME))
        return is_open and self.auth is not None and self.auth.method != "tls"

    @property
    def certificate(self) -> Path | None:
        """The gateway's own."""
        return None if self.tls is None else self.tls.certificate

    def make_tls(self, cluster: str) -> Tls | None:
        """For brokers and the REST interface; None where neither has any."""
        is_admin_tls = self.admin_url is not None and self.admin_url.startswith(SCHEMES[1])
        if self.tls is None and not self.is_tls and not is_admin_tls:
            return None
        return (self.tls or TlsOptions()).make(cluster)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """`pulsar[+ssl]://host:6650[,host:6650][?admin=http://host:8080&NAME=VALUE]`; without `admin` it is a guess."""
        service, settings = split_url(url, cls, without={"service_url"}, short=ADMIN)
        if "admin_url" in settings:
            return cls.model_validate(settings | {"service_url": service})
        is_tls = service.startswith(TLS_SCHEME)
        hosts = dict.fromkeys(address.host for address in parse_service_url(service, tls=is_tls))
        scheme, port = (SCHEMES[1], ADMIN_TLS_PORT) if is_tls else (SCHEMES[0], ADMIN_PORT)
        guess = ",".join(f"{scheme}[{host}]:{port}" if ":" in host else f"{scheme}{host}:{port}" for host in hosts)
        made = cls.model_validate(settings | {"service_url": service, "admin_url": guess})
        made._admin_is_guessed = True  # noqa: SLF001 - its own
        return made

    @property
    def admin_is_guessed(self) -> bool:
        """Nobody wrote `admin_url`: it was made from the service URL."""
        return self._admin_is_guessed


class PulsarInboundOptions(BaseModel):
    """Consuming from Pulsar."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subscription_type: Literal["failover", "exclusive", "shared", "key_shared"] = Field(
        default="failover",
        description="`failover` and `exclusive` keep the order of a partition and acknowledge cumulatively; with `failover`"
        " another instance takes over. `shared` and `key_shared` divide a partition's entries among instances.",
    )
    consumer_name: str = Field(default="", description="Name shown by the broker; empty makes one that no other instance has.")
    batch_bytes: Size = Field(
        default=1 << 20, ge=1, le=64 << 20, description="Entries that wait are handed on together up to this many bytes."
    )


class PulsarOutboundOptions(BaseModel):
    """Producing to Pulsar."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compression: CodecName = Field(default="none", description="Of every entry.")
    batch_messages: int = Field(default=5000, ge=1, le=100_000, description="Most messages of one entry.")
    batch_bytes: Size = Field(
        default=512 << 10,
        ge=1,
        le=64 << 20,
        description="Most bytes of one entry before compression; a larger message has its own.",
    )
    key_hash: Literal["java", "murmur3"] = Field(
        default="java",
        description="How keys choose a partition: `java` as Java producers do by default, `murmur3` as all clients can be told.",
    )
    producer_name: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the producer of every partition, for deduplication by the broker; one instance at a time may have"
        " it. Without it the broker makes one.",
    )
