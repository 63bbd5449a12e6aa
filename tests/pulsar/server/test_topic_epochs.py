"""Topic epochs are kept up to a limit, in the state file if there is one."""

from pathlib import Path

import pytest

from mqbridge.groups.store import GroupStore
from mqbridge.listener.notes import Notes
from mqbridge.pulsar.server import topic_epochs
from mqbridge.pulsar.server.topic_epochs import TopicEpochs


async def test_epochs_are_read_again_and_the_oldest_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_epochs, "MAX_EPOCHS", 3)
    store = GroupStore(tmp_path / "state.db")
    epochs = TopicEpochs(Notes(store, "app", "store"))
    for partition in range(3):
        await epochs.record("t", partition, partition)
    await epochs.record("t", 0, 7)
    await epochs.record("t", 0, 5)
    await epochs.record("t", 3, 3)
    for each in (epochs, TopicEpochs(Notes(store, "app", "store"))):
        assert [each.get("t", partition) for partition in range(4)] == [7, -1, 2, 3]
    assert TopicEpochs(Notes(store, "other", "store")).get("t", 0) == -1
    await store.close()


async def test_without_a_state_file_they_live_as_long_as_the_process() -> None:
    epochs = TopicEpochs(Notes(None, "app", "store"))
    await epochs.record("t", 0, 4)
    epochs.keep("t", 0, 2)
    epochs.keep("t", 1, -1)
    assert (epochs.get("t", 0), epochs.get("t", 1)) == (4, -1)
