"""What the gateway sees of Pulsar; `ADAPTER` registers it."""

from mqbridge.pulsar.adapter.cluster import ADAPTER

__all__ = ["ADAPTER"]
