"""Stream operators: functions that take and return DataFrames, and StreamBuilder, with the API of RocketMQ Streams (RIP-58)."""

from mqbridge.spark.streams.accumulators import Accumulator, Fold, accumulate, accumulate_window, window_aggregate
from mqbridge.spark.streams.decoding import decode, encode, split
from mqbridge.spark.streams.heartbeat import Heartbeats, IdleWatch
from mqbridge.spark.streams.joins import latest_join, window_join
from mqbridge.spark.streams.rip58.builder import KeyValueDeserializer, KeyValueSerializer, StreamBuilder
from mqbridge.spark.streams.rip58.codecs import JsonCodec, PickleCodec
from mqbridge.spark.streams.rip58.job import StreamConfig, StreamJob, TimeType
from mqbridge.spark.streams.rip58.plan import Topology
from mqbridge.spark.streams.rip58.rows import Pair
from mqbridge.spark.streams.rip58.rstream import GroupedStream, JoinedStream, RStream, WindowStream
from mqbridge.spark.streams.state import use_rocksdb
from mqbridge.spark.streams.windows import Time, Window, WindowBuilder

__all__ = [
    "Accumulator",
    "Fold",
    "GroupedStream",
    "Heartbeats",
    "IdleWatch",
    "JoinedStream",
    "JsonCodec",
    "KeyValueDeserializer",
    "KeyValueSerializer",
    "Pair",
    "PickleCodec",
    "RStream",
    "StreamBuilder",
    "StreamConfig",
    "StreamJob",
    "Time",
    "TimeType",
    "Topology",
    "Window",
    "WindowBuilder",
    "WindowStream",
    "accumulate",
    "accumulate_window",
    "decode",
    "encode",
    "latest_join",
    "split",
    "use_rocksdb",
    "window_aggregate",
    "window_join",
]
