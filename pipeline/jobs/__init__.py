"""Spark jobs. Importing one of them without Spark says what to install."""

try:
    import pyspark  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the jobs need Spark: pip install 'tierlog[spark]', and Java 17 or newer. "
        "`tierlog adopt` puts a broker's store into an archive without both",
        name=error.name,
    ) from error
