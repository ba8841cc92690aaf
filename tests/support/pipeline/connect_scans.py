"""Several scans of one ``load()`` over Spark Connect, in a process of their own: a JSON object of what each found.

``python -m tests.support.pipeline.connect_scans URL``. A process has either a classic session or one of Connect.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from tierlog.pipeline.source import TierlogDataSource


def main() -> None:
    """Ask, with Spark's push-down on, and print the numbers of the messages that each scan gave."""
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(TierlogDataSource)
    loaded = spark.read.format("tierlog").option("view", "keys").load(sys.argv[1])
    loaded.createOrReplaceTempView("messages")
    first, second = loaded.where("topic = 't0'"), loaded.where("topic = 't1'")
    scans = {
        "a part": first,
        "all, after a part": loaded,
        "union": first.union(second),
        "self-join": first.alias("a").join(loaded.where("key = 'k3'").alias("b"), "physical_offset").select("a.body"),
        "subquery": spark.sql(
            "SELECT body FROM messages WHERE topic = 't2' AND physical_offset IN "
            "(SELECT physical_offset FROM messages WHERE key = 'k5')"
        ),
        "view": spark.sql("SELECT body FROM messages"),
        "option": spark.read.format("tierlog").option("topic", "t1").load(sys.argv[1]),
    }
    found = {
        name: sorted(int(row.number) for row in scan.selectExpr("decode(body, 'utf-8') number").collect())
        for name, scan in scans.items()
    }
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
