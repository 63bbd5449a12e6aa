"""The scripted broker and a client that is connected to it."""

from tests.pulsar.client.broker import broker
from tests.pulsar.client.conftest import client

__all__ = ["broker", "client"]
