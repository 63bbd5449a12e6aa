"""The fixture `world`: memory brokers, and a gateway between them."""

from tests.gateway.conftest import world

__all__ = ["world"]
