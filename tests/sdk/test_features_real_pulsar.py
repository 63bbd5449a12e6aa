"""The programs of tests/sdk/features reach the expected outcomes with a real broker, so they may judge other servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import pytest

from tests.kit.process import free_ports
from tests.kit.pulsar import PROXIED, Pulsar
from tests.sdk.features import LANGUAGES, TOPICS, Feature, features_of, missing, wrong_outcomes
from tests.sdk.features.programs import NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.sdk, pytest.mark.timeout(600)]

DEDUPLICATED = "public/deduplicated"


class RealPulsar:
    """A broker with a namespace that deduplicates, and a listener whose address is that of the harness's proxy."""

    def __init__(self, pulsar: Pulsar, proxied_port: int) -> None:
        self.pulsar, self.proxied_port = pulsar, proxied_port
        pulsar.create_namespace(*DEDUPLICATED.split("/"))
        pulsar.admin("POST", f"namespaces/{DEDUPLICATED}/deduplication", True)

    async def create_partitioned(self, topic: str, partitions: int) -> None:
        await asyncio.to_thread(self.pulsar.create_topic, topic.rpartition("/")[2], partitions)

    async def wrong_outcomes(self, language: str, features: list[str]) -> Mapping[str, object]:
        return await wrong_outcomes(
            features, language, self.pulsar.service_url, namespace_of=namespace_of, listener_name=PROXIED,
            proxied_port=self.proxied_port, create_partitioned=self.create_partitioned,
        )  # fmt: skip


def namespace_of(feature: Feature) -> str:
    return f"persistent://{DEDUPLICATED}" if feature.deduplicates else NAMESPACE


@pytest.fixture(scope="module")
def real_pulsar() -> Iterator[RealPulsar]:
    (port,) = free_ports(1)
    with Pulsar(proxied_port=port) as pulsar:
        yield RealPulsar(pulsar, port)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_real_broker_gives_the_expected_outcomes(language: str, topic: str, real_pulsar: RealPulsar) -> None:
    if reason := missing(language):
        pytest.skip(reason)
    assert await real_pulsar.wrong_outcomes(language, features_of(language, topic)) == {}
