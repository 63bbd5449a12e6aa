"""Knowledge of a client about deleted ledgers: every position that it got proves that the entries before it existed."""

import pytest

from mqbridge.pulsar.adapter.known_entries import MAX_LEDGERS, KnownEntries

TOPIC = "persistent://public/default/t"


@pytest.fixture
def known() -> KnownEntries:
    """Ledger 5 held 10 entries at least, ledger 7 two."""
    known = KnownEntries()
    for position in ((5, 10, 0), (5, 3, 0), (7, 1, 2), (8, 0, 0), (-1, -1, 0)):
        known.add_before(TOPIC, position)
    return known


@pytest.mark.parametrize(
    ("begin", "first_ledger", "is_known"),
    [
        ((5, 9, 0), 6, True),
        ((5, 9, 1), 6, False),  # perhaps the end of the last entry
        ((5, 10, 0), 6, False),
        ((5, 10, 0), 7, False),
        ((5, 10, 0), 8, True),
        ((5, 0, 0), 5, False),
        ((6, 4, 0), 8, True),
        ((7, 2, 0), None, False),
        ((7, 1, 0), None, True),
        ((8, 0, 0), None, False),
    ],
)
def test_an_entry_that_is_known_and_deleted_is_a_loss(known, begin, first_ledger, is_known):
    assert known.deleted_from(TOPIC, begin, first_ledger) is is_known
    assert not known.deleted_from("persistent://public/default/other", begin, first_ledger)


def test_the_oldest_ledgers_are_forgotten_first(known):
    for ledger in range(10, 10 + MAX_LEDGERS):
        known.add(TOPIC, ledger, 1)
    assert not known.deleted_from(TOPIC, (5, 0, 0), 10)
    assert known.deleted_from(TOPIC, (5, 0, 0), 11)


def test_a_warning_is_logged_once_for_each_position(known, caplog):
    for entry in (1, 1, 2, 2):
        known.warn_unknown(TOPIC, (5, entry, 0))
    assert [record.getMessage().partition(" is deleted")[0] for record in caplog.records] == [
        f"topic {TOPIC}: the ledger of position 5:{entry}:0" for entry in (1, 2)
    ]
