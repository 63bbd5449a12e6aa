"""What the gateway sees of RocketMQ; `ADAPTER` registers it."""

from mqbridge.rocketmq.adapter.cluster import ADAPTER

__all__ = ["ADAPTER"]
