"""`format("mqbridge")`: what Spark asks for a schema, readers and writers.

Spark makes an object of this class whenever it needs one, in processes of its own on the driver's machine, and pickles some of
them: nothing here is open, and the configuration is read when the schema is asked for, which is before it is pickled.
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
from mqbridge.spark.ranges.rows import RANGES, range_schema
from mqbridge.spark.schema import message_schema
from mqbridge.spark.sink.writer import make_stream_writer, make_writer
from mqbridge.spark.source.batch_reader import MessageReader
from mqbridge.spark.source.settings import SourceSettings, source_settings
from mqbridge.spark.source.stream_reader import MessageStreamReader


class MqbridgeDataSource(DataSource):
    """Reads from and writes to every system that has an adapter.

    There is no `pushFilters`: with it Spark refuses every plain read, unless the session is set up for it.
    """

    _cluster: ClusterRef | None = None
    _route: ResolvedRoute | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mqbridge"

    def schema(self) -> StructType:
        """Columns of messages, or of ranges. Raises ConfigError."""
        values = parse_options(self.options, Usage.ANY)
        self._reference(values)
        if values["mode"] == RANGES:
            return range_schema()
        return message_schema(binary_properties=values["propertiesFormat"] == "binary")

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`. Raises ConfigError."""
        return MessageReader(self._settings(Usage.BATCH, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`. Raises ConfigError."""
        return MessageStreamReader(self._settings(Usage.STREAM, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`. Raises ConfigError."""
        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `df.writeStream`. Raises ConfigError."""
        return make_stream_writer(self.options, schema, overwrite)

    def _settings(self, where: Usage, schema: StructType) -> SourceSettings:
        if [(one.name, one.dataType) for one in schema] != [(one.name, one.dataType) for one in self.schema()]:
            raise ConfigError("the columns of messages are given", hint="Leave the schema out, and select what is needed")
        values = parse_options(self.options, where)
        return source_settings(values, self._reference(values), where, self._route)

    def _reference(self, values: OptionValues) -> ClusterRef:
        if self._cluster is None:
            self._route = resolve_route(values)
            self._cluster = resolve_cluster(values) if self._route is None else self._route.source
        return self._cluster
