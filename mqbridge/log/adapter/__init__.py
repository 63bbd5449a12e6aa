"""Adapter of the embedded log; `ADAPTER` registers it."""

from mqbridge.log.adapter.cluster import ADAPTER

__all__ = ["ADAPTER"]
