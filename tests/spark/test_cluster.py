"""Executors in processes of their own, which have nothing but the packed archive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pyspark
import pytest

from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.packing import main as pack
from tierlog.service.engine.store import Store
from tierlog.tiering.message.batch import Message

pytestmark = pytest.mark.slow

#: Runs on the driver; its executors must not see this checkout.
_DRIVER = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
url, out, key = sys.argv[1:]

def places(_):
    import os, numba, tierlog, tierlog.pipeline
    yield [os.getpid(), *(os.path.relpath(each.__file__) for each in (numba, tierlog, tierlog.pipeline))]

from tierlog.pipeline.source import TierlogDataSource

spark.dataSource.register(TierlogDataSource)
messages = spark.read.format("tierlog").option("cold", url).load()
by_key = spark.read.format("tierlog").option("cold", url).option("view", "keys").option("key", key).load()
with open(out, "w") as file:
    json.dump({
        "places": spark.sparkContext.parallelize(range(8), 8).mapPartitions(places).collect(),
        "messages": messages.count(),
        "found": sorted(bytes(row.body).decode() for row in by_key.select("body").collect()),
    }, file)
"""


def test_spark_submit_with_a_packed_environment_and_separate_executors(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/cold"
    engine = Store.open(tmp_path / "store", settings=tiny_settings(), cold_url=url)
    engine.append([Message("t", b"%d" % number, [f"k{number % 100}"], queue_id=number % 4) for number in range(2_000)])
    engine.archive(everything=True)
    engine.close()
    packed = tmp_path / "site.tar.gz"
    assert pack([str(packed)]) == 0
    script, out = tmp_path / "driver.py", tmp_path / "out.json"
    script.write_text(_DRIVER)
    home = Path(pyspark.__file__).parent
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.executor.memory": "512m", "spark.executorEnv.PYTHONPATH": "site",
    }  # fmt: skip
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [
        str(home / "bin" / "spark-submit"), "--master", "local-cluster[2,1,1024]", "--archives", f"{packed}#site",
        *given, str(script), url, str(out), "k7",
    ]  # fmt: skip
    # an interpreter without libraries of its own; the driver has the archive unpacked, the executors unpack it
    site = tmp_path / "driver_site"
    with tarfile.open(packed) as archive:
        archive.extractall(site, filter="data")
    environment = os.environ | {
        "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": os.path.realpath(sys.executable), "PYTHONPATH": str(site),
    }  # fmt: skip
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads(out.read_text())
    assert len({place[0] for place in answer["places"]}) == 2
    for _, *files in answer["places"]:
        assert [Path(file).parts[0] for file in files] == ["site"] * 3
    assert answer["messages"] == 2_000
    assert answer["found"] == sorted(str(number) for number in range(7, 2_000, 100))
