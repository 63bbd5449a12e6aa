"""Harness of the conformance suite for this adapter: `MQBRIDGE_CONFORMANCE=files_harness:FilesHarness`."""

from pathlib import Path

from mqbridge_files.cluster import ADAPTER, FilesConfig

from tests.conformance.harness import BuiltIn


class FilesHarness(BuiltIn):
    """Gives every test a new folder. `BuiltIn` is the harness for systems whose topics are created through the contract."""

    def __init__(self, folder: Path) -> None:
        super().__init__("files", ADAPTER, FilesConfig(path=folder / "topics"), 5 << 20, finds_times=False)
