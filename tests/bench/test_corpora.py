"""The corpora cover the messages of typical applications, and the measurements cover every direction."""

from tests.bench.bridge_page import BYTES, DIRECTIONS, Case, cases, everything, messages_of, table
from tests.bench.corpora import CORPORA, ORDINARY
from tests.bench.figures import Figures


def test_the_corpora_cover_messages_of_official_clients() -> None:
    assert {corpus.batch for corpus in CORPORA.values()} == {1, 32}
    assert {0, 100} <= {corpus.keyed for corpus in CORPORA.values()}
    assert {0, 5, 30} <= {corpus.properties for corpus in CORPORA.values()}
    assert {100, 1_000, 10_000} <= {corpus.payload for corpus in CORPORA.values()}
    assert {1, 8, 64} == {corpus.partitions for corpus in CORPORA.values()}
    assert {"LZ4", "ZSTD"} <= {corpus.compression.get("pulsar") for corpus in CORPORA.values()}
    assert {"ZLIB", "ZSTD"} <= {corpus.compression.get("rocketmq") for corpus in CORPORA.values()}
    assert any(corpus.odd for corpus in CORPORA.values())
    assert len(CORPORA) <= 10


def test_the_ordinary_corpora_differ_in_batches_only() -> None:
    batched, single = (CORPORA[name].arguments("rocketmq") for name in ORDINARY)
    assert {name for name in batched if batched[name] != single[name]} == {"batch"}
    assert batched["payload"] == 1_000
    assert batched["properties"] == 5


def test_arguments_name_the_compression_of_the_system() -> None:
    assert CORPORA["compressed"].arguments("pulsar")["compression"] == "LZ4"
    assert CORPORA["compressed"].arguments("rocketmq")["compression"] == "ZLIB"
    assert CORPORA["compressed"].arguments("tubemq")["compression"] is None


def test_the_default_cases_are_all_corpora_in_nine_directions_and_some_with_raised_limits_or_rules() -> None:
    found = everything()
    assert len(DIRECTIONS) == 9
    assert {(case.direction, case.corpus) for case in found} == {(one, name) for one in DIRECTIONS for name in CORPORA}
    assert {case.ends[0] for case in found if case.raised} == {"rocketmq"}
    assert {case.direction for case in found if case.rules} == set(DIRECTIONS)
    assert len(set(found)) == len(found)


def test_a_corpus_of_large_messages_has_fewer_messages() -> None:
    assert messages_of("ordinary", 150_000) == 150_000
    assert messages_of("large", 150_000) == BYTES // 10_000


def test_a_row_of_the_table_has_the_figures_of_both_bridges_and_ratios() -> None:
    [case] = cases(["rocketmq-pulsar"], ["single"], raised=True, rules=False)
    assert case == Case("single", raised=True, rules=False, direction="rocketmq-pulsar")
    both = {"mqbridge": Figures(30_000, 10, 90), "Java bridge": Figures(20_000, 40, 360)}
    heads, rule, line = table([(case, both)], list(both))
    assert line == (
        "| rocketmq to pulsar | single, raised pull limits | 30,000 | 10.0 | 90 | 20,000 | 40.0 | 360 | 1.50 | 0.25 | 0.25 |"
    )
    assert heads.count("|") == rule.count("|") == line.count("|")


def test_a_table_of_one_bridge_has_no_ratios() -> None:
    [case] = cases(["pulsar-tubemq"], ["odd"], raised=False, rules=True)
    heads, rule, line = table([(case, {"mqbridge": Figures(30_000, 10, 90)})], ["mqbridge"])
    assert line == "| pulsar to tubemq | odd, rules | 30,000 | 10.0 | 90 |"
    assert heads.count("|") == rule.count("|") == line.count("|")
