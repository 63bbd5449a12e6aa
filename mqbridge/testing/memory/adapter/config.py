"""The configuration of a memory cluster."""

from pydantic import BaseModel, ConfigDict, Field

from mqbridge.adapter.registry import ClusterModel


class MemoryConfig(ClusterModel):
    """Settings of one broker inside the process; its messages are lost when the process ends."""

    broker: str = Field(
        default="",
        description="Name of the broker; clusters with the same broker share its data. Empty means the cluster's own name.",
    )
    individual_ack: bool = Field(
        default=False,
        description="Acknowledge messages in any order, and redeliver only rejected ones; otherwise a rejected message is "
        "redelivered with all later ones.",
    )
    empty_payload: bool = Field(default=True, description="Accept empty payloads; otherwise they are refused.")
    max_message_bytes: int = Field(
        default=5 << 20, gt=0, description="Maximum size of a payload in bytes; larger ones are refused."
    )
    growing_outbound: bool = Field(default=True, description="Open outbounds write to partitions that are added to their topic.")
    batch_messages: int = Field(default=500, gt=0, description="Maximum number of messages of a received batch.")

    @property
    def identity(self) -> str | None:
        """The broker's name; None if it is the cluster's own name, which these options do not contain."""
        return f"memory://{self.broker}" if self.broker else None


class MemoryOptions(BaseModel):
    """Options of inbounds and outbounds: there are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)
