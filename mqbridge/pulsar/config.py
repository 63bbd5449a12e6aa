"""The configuration of a Pulsar cluster, and of the routes' ends at it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mqbridge.pulsar.client.pool import TLS_SCHEME, parse_service_url
from mqbridge.pulsar.wire.names import DEFAULT_NAMESPACE, parse_topic


class PulsarCluster(BaseModel):
    """A Pulsar cluster."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    service_url: str = Field(description="`pulsar://host:6650`, several hosts with commas between them; tried in turn.")
    admin_url: str | None = Field(
        default=None,
        description="`http://host:8080`, the REST interface. Without it topics can be created only as the broker creates them by"
        " itself, only those of the default namespace are listed, and groups and their positions cannot be read.",
    )
    namespace: str = Field(default=DEFAULT_NAMESPACE, description="`tenant/namespace` of topics that are named without one.")
    operation_timeout_s: float = Field(
        default=30.0, gt=0, description="Seconds for opening something or asking for metadata, with all repetitions."
    )
    request_timeout_s: float = Field(default=10.0, gt=0, description="Seconds for one answer of a broker.")
    connect_timeout_s: float = Field(default=10.0, gt=0, description="Seconds for a connection and its handshake.")
    keep_alive_s: float = Field(
        default=30.0, ge=0.1, description="Seconds between pings; a broker that is silent from one to the next is given up."
    )
    refresh_s: float = Field(default=60.0, ge=0.1, description="Seconds between looks for new partitions of consumed topics.")

    @field_validator("service_url")
    @classmethod
    def _is_service_url(cls, url: str) -> str:
        if url.startswith(TLS_SCHEME):
            raise ValueError("encrypted connections are not supported yet: write pulsar://host:6650")
        parse_service_url(url, tls=False)
        return url

    @field_validator("admin_url")
    @classmethod
    def _is_admin_url(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not http://host:port")
        return url and url.rstrip("/")

    @field_validator("namespace")
    @classmethod
    def _is_namespace(cls, namespace: str) -> str:
        parse_topic("x", namespace)
        return namespace


class PulsarInboundOptions(BaseModel):
    """Consuming from Pulsar."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subscription_type: Literal["failover", "exclusive", "shared", "key_shared"] = Field(
        default="failover",
        description="`failover` and `exclusive` keep the order of a partition and acknowledge cumulatively; with `failover`"
        " another instance takes over. `shared` and `key_shared` divide a partition's entries among instances.",
    )
    consumer_name: str = Field(default="", description="Name shown by the broker; empty makes one that no other instance has.")
    batch_bytes: int = Field(
        default=1 << 20, ge=1, le=64 << 20, description="Entries that wait are handed on together up to this many bytes."
    )


class PulsarOutboundOptions(BaseModel):
    """Producing to Pulsar."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compression: Literal["none", "lz4", "zlib", "zstd", "snappy"] = Field(default="none", description="Of every entry.")
    batch_messages: int = Field(default=5000, ge=1, le=100_000, description="Most messages of one entry.")
    batch_bytes: int = Field(
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
