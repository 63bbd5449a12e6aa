"""Positions of consecutive offsets, which are made when they are used, are like a list of positions."""

from mqbridge.adapter.receipt import OffsetPositions, Receipt


def test_they_are_a_sequence_of_positions():
    positions = OffsetPositions(range(5, 8))
    assert positions == [(5,), (6,), (7,)]
    assert positions == [(5,), (6,), (7,)]
    assert positions == OffsetPositions(range(5, 8))
    assert positions != [(5,)]
    assert positions != OffsetPositions(range(5, 9))
    assert positions != 5
    assert (len(positions), positions[0], positions[-1], list(positions)) == (3, (5,), (7,), [(5,), (6,), (7,)])
    assert positions[1:] == [(6,), (7,)]
    assert (6,) in positions


def test_the_highest_is_the_last():
    assert Receipt(OffsetPositions(range(5, 8))).highest_position == (7,)
    assert Receipt(OffsetPositions(range(5, 5))).highest_position == ()
    assert Receipt([(3,), (), (9,), (4,)]).highest_position == (9,)
