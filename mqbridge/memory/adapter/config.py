"""The configuration of a memory cluster."""

from pydantic import BaseModel, ConfigDict, Field

from mqbridge.adapter.registry import ClusterModel


class MemoryConfig(ClusterModel):
    """One in-process broker; what it holds is gone when the process ends."""

    broker: str = Field(
        default="", description="Clusters of the same broker name share their data; empty is the cluster's own name."
    )
    individual_ack: bool = Field(default=False, description="Acknowledge batches in any order, redeliver only what was rejected.")
    empty_payload: bool = Field(default=True, description="Take payloads of no bytes; refused otherwise.")
    max_message_bytes: int = Field(default=5 << 20, gt=0, description="Most bytes of one payload; larger ones are refused.")
    growing_outbound: bool = Field(default=True, description="Open outbounds notice by themselves when their topic grew.")
    batch_messages: int = Field(default=500, gt=0, description="Most messages of one received batch.")


class MemoryOptions(BaseModel):
    """Nothing to set on either end."""

    model_config = ConfigDict(extra="forbid", frozen=True)
