"""A fake system, with settings of every kind that a real system has."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter
from mqbridge.mapping.field_table import FieldTable


class FakeCluster(BaseModel):
    """A cluster of the fake system."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    masters: list[str] = Field(description="Masters, host:port.")
    port: int = Field(default=3, description="A port.")
    strict: bool = Field(default=False, description="A switch.")


class FakeInbound(BaseModel):
    """Options for consuming from the fake system."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pull_bytes: int = Field(default=1024, description="Bytes of one pull.")


class FakeOutbound(BaseModel):
    """Options for producing to the fake system."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compression: str = Field(default="none", description="The compression.")


def no_cluster(name: str, config: Any, /) -> Cluster:
    raise AssertionError(f"these tests must not make a cluster, but {name} was requested with {config}")


ADAPTERS = {
    "fake": Adapter(
        system="fake",
        cluster_model=FakeCluster,
        inbound_options=FakeInbound,
        outbound_options=FakeOutbound,
        make_cluster=no_cluster,
        table=FieldTable("fake", "Fake", ()),
        preview=lambda *_: [],
    )
}
