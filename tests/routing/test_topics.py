"""Topic selection and target templates."""

import pytest

from mqbridge.errors import ConfigError
from mqbridge.routing.topics import SelectedTopic, render_target_topic, select_topics


def test_names_and_patterns() -> None:
    existing = ["orders_eu", "orders_us", "payments", "xorders_eu"]
    chosen = select_topics(["~orders_(?P<region>.+)", "other"], existing)
    assert [item.topic for item in chosen] == ["orders_eu", "orders_us", "other"]
    assert render_target_topic("{region}-{topic}", chosen[0]) == "eu-orders_eu"


def test_a_topic_that_matches_twice_is_selected_once() -> None:
    assert len(select_topics(["orders", "~ord.*"], ["orders"])) == 1


def test_the_error_of_an_invalid_pattern_has_the_position() -> None:
    with pytest.raises(ConfigError, match=r"'~orders\(' does not compile: .* at character 8"):
        select_topics(["~orders("], [])


def test_an_unknown_word_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"uses 'region'.*The template may use \{topic\}"):
        render_target_topic("{region}", SelectedTopic("orders", {"topic": "orders"}))


def test_a_broken_template() -> None:
    with pytest.raises(ConfigError, match="not well formed"):
        render_target_topic("{topic", SelectedTopic("orders", {"topic": "orders"}))


@pytest.mark.parametrize(
    ("template", "target"),
    [
        ("persistent://public/default/{topic}", "persistent://public/default/orders"),
        ("persistent://acme/{region}/{topic}-copy", "persistent://acme/eu/orders-copy"),
        ("copy-of-{topic}", "copy-of-orders"),
        ("{topic}", "persistent://acme/eu/orders"),
        ("{topic}-copy", "persistent://acme/eu/orders-copy"),
        ("a-{{{topic}}}", "a-{orders}"),
    ],
)
def test_a_full_name_after_a_prefix_gives_its_last_part(template: str, target: str) -> None:
    full = "persistent://acme/eu/orders"
    [chosen] = select_topics(["~persistent://acme/(?P<region>.+)/orders"], [full])
    assert render_target_topic(template, chosen) == target


def test_a_pattern_that_could_stop_the_gateway_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'~\(a\+\)\+' could take longer than anybody waits: it repeats what is a repeat itself"
    ):
        select_topics(["~(a+)+"], [])
