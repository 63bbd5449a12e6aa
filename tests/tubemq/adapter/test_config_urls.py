"""Cluster URLs."""

import pytest

from mqbridge.tubemq.adapter.config import TubeMQCluster


def test_a_url_with_ssl_is_one_with_tls() -> None:
    assert TubeMQCluster.from_url("tubemq://m").master_addresses == [("m", 8715)]
    encrypted = TubeMQCluster.from_url("tubemq+ssl://m")
    assert encrypted.tls is not None
    assert encrypted.master_addresses == [("m", 8716)]


def test_a_url_with_ssl_is_never_plain() -> None:
    with pytest.raises(ValueError, match=r"tubemq\+ssl:// and tls=false exclude each other"):
        TubeMQCluster.from_url("tubemq+ssl://m?tls=false")
