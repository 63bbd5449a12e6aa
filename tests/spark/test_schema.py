"""The column `source`: partition and cluster of a row, as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.message import Partition
from mqbridge.spark.schema import RowSource, format_source, parse_source

names = st.text(st.sampled_from("a|%=:/7C5"), max_size=8)


@given(st.builds(Partition, names, names, names, st.integers(0, 99)), names, st.booleans())
def test_a_source_is_the_same_after_it_was_a_text(partition: Partition, cluster: str, is_part: bool) -> None:
    stored_cluster = "" if cluster == partition.cluster else cluster
    text = format_source(partition, cluster or None, is_part=is_part)
    assert parse_source(text) == RowSource(partition, stored_cluster, is_part)


def test_sources_of_clusters_that_have_one_name_differ() -> None:
    partition = Partition("shop", "orders", "0", 0)
    assert format_source(partition, "pulsar://a:6650") == "shop|orders|0|0|at=pulsar://a:6650"
    assert format_source(partition, "shop", is_part=True) == format_source(partition, is_part=True) == "shop|orders|0|0|part"


@pytest.mark.parametrize("text", ["a|b|c", "a|b|c|0|x", "a|b|c|0|part|at=x", "a|b|c|0|at=x|at=y", "a|b|c|x"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a value of column source|invalid literal"):
        parse_source(text)
