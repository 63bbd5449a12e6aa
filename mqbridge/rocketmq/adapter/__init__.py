"""RocketMQ's side of the adapter interface; `ADAPTER` registers it."""

from mqbridge.rocketmq.adapter.cluster import ADAPTER

__all__ = ["ADAPTER"]
