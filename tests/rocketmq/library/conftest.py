"""Fixtures of scripted brokers and name servers, without sockets."""

from tests.rocketmq.client.broker import cluster
from tests.rocketmq.client.conftest import client

__all__ = ["client", "cluster"]
