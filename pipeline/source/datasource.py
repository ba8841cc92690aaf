"""The data source ``tierlog``, as Spark uses it for reads, streams and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from tierlog.pipeline.read.views import KEYED_SPARK, MESSAGES_SPARK, is_projection
from tierlog.pipeline.source.options import SourceOptions, SourceUse, View
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.types import Durability

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter


class TierlogDataSource(DataSource):
    """Archives and running services as DataFrames; ``docs/pipeline.md`` has the options.

    Whatever is wrong with options or schema is one :class:`InvalidRequestError` on the driver.
    """

    @classmethod
    def name(cls) -> str:
        """Returns the name for ``format``."""
        return "tierlog"

    def schema(self) -> StructType:
        """Returns the columns of the view, or those that option ``columns`` names."""
        return _schema_of(SourceOptions.parse(self.options, SourceUse.READ | SourceUse.READ_STREAM))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there when the query is planned."""
        from tierlog.pipeline.source.batch import BatchReader

        options = SourceOptions.parse(self.options, SourceUse.READ)
        _check_schema(schema, options)
        return BatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads what comes, each message once."""
        from tierlog.pipeline.source.stream_reader import TierlogStreamReader

        options = SourceOptions.parse(self.options, SourceUse.READ_STREAM)
        _check_schema(schema, options)
        return TierlogStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Appends to a running service (``url``), or makes an archive of a new store (``cold``)."""
        from tierlog.pipeline.source.archive_writer import make_archive_writer

        options = SourceOptions.parse(self.options, SourceUse.WRITE)
        if options.cold is not None and options.url is not None:
            raise InvalidRequestError("rows go to a service or to an archive", hint="give option 'url' or 'cold'")
        if options.cold is None:
            from tierlog.pipeline.source.service_writer import make_service_writer

            if options.segment_bytes or options.index_slots or options.index_items:
                raise InvalidRequestError("a service has sizes of its own", hint="such options are for 'cold'")
            return make_service_writer(options, schema, overwrite=overwrite, randomness=SystemRandomness())
        if options.producer is not None or options.durability is not Durability.FLUSHED:
            raise InvalidRequestError("producer and durability are of a service", hint="give 'url' or leave them out")
        return make_archive_writer(
            options, schema, overwrite=overwrite, clock=SystemClock(), randomness=SystemRandomness()
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Appends to a running service, each row once."""
        from tierlog.pipeline.source.service_writer import make_service_stream_writer

        options = SourceOptions.parse(self.options, SourceUse.WRITE_STREAM)
        if options.url is None or options.cold is not None:
            raise InvalidRequestError("a stream is written to a service", hint="give option 'url'")
        return make_service_stream_writer(options, schema, overwrite=overwrite)


def _schema_of(options: SourceOptions) -> StructType:
    whole = KEYED_SPARK if options.view is View.KEYS else MESSAGES_SPARK
    if options.columns is None:
        return whole
    for name in options.columns:
        if name not in whole.names:
            hint = "there are " + ", ".join(whole.names)
            raise InvalidRequestError(f"view {options.view} has no column {name[:60]!r}", hint=hint)
    return StructType([whole[name] for name in options.columns])


def _check_schema(schema: StructType, options: SourceOptions) -> None:
    """Refuses a schema that the user made up and that is no projection of the view."""
    full_schema = _schema_of(options)
    if not is_projection(schema, full_schema):
        raise InvalidRequestError(
            f"view {options.view} has other columns", hint=f".schema(…) may name some of {full_schema.simpleString()}"
        )
