"""The TubeMQ adapter of the gateway; `ADAPTER` registers it."""

from mqbridge.tubemq.adapter.cluster import ADAPTER

__all__ = ["ADAPTER"]
