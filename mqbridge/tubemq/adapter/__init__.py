"""What the gateway sees of TubeMQ; `ADAPTER` registers it."""

from mqbridge.tubemq.adapter.cluster import ADAPTER

__all__ = ["ADAPTER"]
