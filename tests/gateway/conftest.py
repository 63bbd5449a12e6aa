from collections.abc import Iterator

import pytest

from tests.gateway.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.delete_brokers()
