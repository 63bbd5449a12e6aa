"""Pulsar's adapter; `ADAPTER` registers it with the gateway."""

from mqbridge.pulsar.adapter.cluster import ADAPTER

__all__ = ["ADAPTER"]
