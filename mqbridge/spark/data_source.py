"""`format("mqbridge")`: the entry point where Spark requests the schema, readers and writers.

Spark creates many instances of `MqbridgeDataSource` in its own processes on the driver's machine, and pickles some of them for
executors. An instance therefore has no open connection. The configuration file exists on the driver only: an instance reads the
file when Spark requests the schema, and Spark pickles the instance later.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from mqbridge.errors import ConfigError
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.config_lookup import ResolvedRoute, resolve_cluster, resolve_route
from mqbridge.spark.options import OptionValues, Usage, parse_options
from mqbridge.spark.ranges.rows import RANGES_MODE, range_schema
from mqbridge.spark.schema import message_schema
from mqbridge.spark.sink.writer import make_stream_writer, make_writer
from mqbridge.spark.source.batch_reader import MessageReader
from mqbridge.spark.source.settings import SourceSettings, source_settings
from mqbridge.spark.source.stream_reader import MessageStreamReader


class MqbridgeDataSource(DataSource):
    """Reads from and writes to every system that has an adapter.

    There is no `pushFilters`: with that method, Spark rejects every read unless the session enables filter pushdown.
    """

    _cluster: ClusterRef | None = None
    """The cluster that the options name; None until it is resolved."""
    _route: ResolvedRoute | None = None
    """The route that the options name; None until it is resolved, and without the option `route`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "mqbridge"

    def schema(self) -> StructType:
        """Return the schema of messages; with `mode=ranges`, the schema of position ranges. Raises ConfigError."""
        values = parse_options(self.options, Usage.ANY)  # Spark does not say for which operation it needs the schema
        self._resolve_source_cluster(values)
        if values["mode"] == RANGES_MODE:
            return range_schema()
        return message_schema(binary_properties=values["propertiesFormat"] == "binary")

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `spark.read`. Raises ConfigError."""
        return MessageReader(self._settings(Usage.BATCH, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of `spark.readStream`. Raises ConfigError."""
        return MessageStreamReader(self._settings(Usage.STREAM, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of `df.write`. Raises ConfigError."""
        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of `df.writeStream`. Raises ConfigError."""
        return make_stream_writer(self.options, schema, overwrite)

    def _settings(self, usage: Usage, schema: StructType) -> SourceSettings:
        if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in self.schema()]:
            raise ConfigError(
                'the schema of format("mqbridge") cannot be changed',
                hint="Remove .schema(...), and select the columns that you need",
            )
        values = parse_options(self.options, usage)
        return source_settings(values, self._resolve_source_cluster(values), usage, self._route)

    def _resolve_source_cluster(self, values: OptionValues) -> ClusterRef:
        """Return the cluster to read from. The first call sets `_cluster` and `_route`. Raises ConfigError."""
        if self._cluster is None:
            self._route = resolve_route(values)
            self._cluster = resolve_cluster(values) if self._route is None else self._route.source_cluster
        return self._cluster
