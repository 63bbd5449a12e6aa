"""The identity of a cluster: different for two clusters, and the same for two spellings of the same addresses."""

from pathlib import Path

import pytest

from mqbridge.adapter.registry import load_adapters
from mqbridge.config.cluster_choice import choose


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("pulsar://B.example,a:6650", "pulsar://a:6650,b.example:6650"),
        ("pulsar://a:6650,b.example:6650?admin=http://a:8080", "pulsar://a:6650,b.example:6650"),
        ("pulsar+ssl://[::1]", "pulsar://[::1]:6651"),
        ("pulsar://a?namespace=shop/eu", "pulsar://a:6650/shop/eu"),
        ("rocketmq://b:9876,a", "rocketmq://a:9876,b:9876"),
        ("rocketmq+ssl://a", "rocketmq://a:9876"),
        ("tubemq://b,a:8715", "tubemq://a:8715,b:8715"),
        ("tubemq://a?heartbeat=3s", "tubemq://a:8715"),
        ("log:///data/./x/../orders.db?poll=1s", "log:///data/orders.db"),
    ],
)
def test_a_cluster_given_by_url_is_called_after_its_normalized_addresses(url: str, identity: str) -> None:
    choice = choose(None, None, url)
    assert choice.name == identity
    settings = load_adapters()[url.partition("://")[0].partition("+")[0]].cluster_model.from_url(url)
    assert settings.identity == identity


def test_a_relative_path_and_a_link_name_the_same_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "orders.db")
    names = {choose(None, None, url).name for url in ("log://orders.db", "log://link.db", f"log://{tmp_path}/orders.db")}
    assert names == {f"log://{tmp_path.resolve()}/orders.db"}
