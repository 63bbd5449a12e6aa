"""What clusters say before messages are deleted is said by `check --connect` and by `run`, and groups are made with topics."""

import logging
from collections.abc import Collection
from typing import Any

import pytest
from typer.testing import CliRunner
import yaml

from mqbridge.cli.main import app
from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.gateway import cautions
from mqbridge.gateway.cautions import TopicUse, warnings_about
from mqbridge.gateway.clusters import connected
from mqbridge.gateway.run import Gateway
from mqbridge.memory.adapter.operations import MemoryOperations
from tests.core.world import ADAPTERS, World, end, fill, route, running, until
