"""Since when, and why, sends fail."""

from mqbridge.net.failing_sends import FailingSends, longest_failing


async def test_the_first_failure_and_the_last_reason_count_until_a_send_is_stored() -> None:
    sends = FailingSends()
    assert longest_failing([sends]) is None
    sends.record(OSError("first"))
    since = sends.failing_since
    sends.record(OSError("disk full"))
    assert longest_failing([FailingSends(), sends]) == (since, "disk full", 2)
    sends.clear()
    assert longest_failing([sends]) is None
    sends.record(OSError("again"))
    assert (sends.failures, sends.reason) == (1, "again")


async def test_the_queue_that_fails_for_the_longest_time_explains_the_others() -> None:
    first, second = FailingSends(), FailingSends()
    second.record(OSError("second"))
    first.record(OSError("first"))
    first.failing_since = (second.failing_since or 0.0) - 1.0
    found = longest_failing([second, first])
    assert found is not None
    assert found[1] == "first"
