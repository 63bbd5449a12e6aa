"""What the gateway sees of the memory system; `ADAPTER` registers it."""

from mqbridge.memory.adapter.cluster import ADAPTER

__all__ = ["ADAPTER"]
