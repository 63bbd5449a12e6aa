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

from mqbridge.spark.chosen import chosen_cluster
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.options import OptionValues, Where, parse_options
from mqbridge.spark.pump.ranges import RANGES, range_schema
from mqbridge.spark.schema import message_schema


class MqbridgeDataSource(DataSource):
    """Reads from and writes to every system that has an adapter.

    There is no `pushFilters`: with it Spark refuses every plain read, unless the session is set up for it.
    """

    _cluster: ClusterRef | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "mqbridge"

    def schema(self) -> StructType:
        """Columns of messages, or of ranges. Raises ConfigError."""
        values = parse_options(self.options, Where.EVERYWHERE)
        self._reached(values)
        if values["mode"] == RANGES:
            return range_schema()
        return message_schema(binary_properties=values["propertiesFormat"] == "binary")

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`. Raises ConfigError."""
        raise NotImplementedError

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`. Raises ConfigError."""
        raise NotImplementedError

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`. Raises ConfigError."""
        from mqbridge.spark.sink.writer import make_writer  # noqa: PLC0415

        return make_writer(parse_options(self.options, Where.WRITE), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `df.writeStream`. Raises ConfigError."""
        from mqbridge.spark.sink.writer import make_stream_writer  # noqa: PLC0415

        return make_stream_writer(parse_options(self.options, Where.WRITE), schema, overwrite)

    def _reached(self, values: OptionValues) -> ClusterRef:
        if self._cluster is None:
            self._cluster = chosen_cluster(values)
        return self._cluster
