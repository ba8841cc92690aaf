"""Jobs on an archive in a bucket: driver and tasks find the credentials themselves, and none is written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.conftest import ROOT
from tests.support.objects.s3_server import ACCESS_KEY, REGION, SECRET_KEY, S3Server, s3_environment
from tests.support.stores.engines import tiny_settings
from tierlog.pipeline.base.archive import ArchiveSnapshot
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.message.batch import Message

pytestmark = pytest.mark.slow


def test_a_job_by_spark_submit_reads_and_writes_buckets_and_no_credential_is_in_the_event_log(
    s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = s3_server.new_bucket()
    url, out = f"s3://{bucket}/archive", f"s3://{bucket}/exports/all"
    settings = tiny_settings(cold__s3_endpoint=s3_server.endpoint_url)
    engine = Store.open(tmp_path / "store", settings=settings, cold_url=url)
    engine.append([Message("t", b"%d" % number, [f"k{number % 10}"], queue_id=number % 4) for number in range(1_000)])
    engine.archive(everything=True)
    engine.close()
    events = tmp_path / "events"
    events.mkdir()
    home = Path(pyspark.__file__).parent
    given = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{events}",
        "spark.executorEnv.TIERLOG_S3_ENDPOINT": s3_server.endpoint_url,
    }  # fmt: skip
    command = [
        str(home / "bin" / "spark-submit"), "--master", "local[2]",
        *(part for name, value in given.items() for part in ("--conf", f"{name}={value}")),
        str(ROOT / "pipeline" / "jobs" / "export.py"), "--cold", url, "--out", out,
    ]  # fmt: skip
    with s3_environment():
        environment = os.environ | {
            "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT), "TIERLOG_S3_ENDPOINT": s3_server.endpoint_url, "AWS_DEFAULT_REGION": REGION,
        }  # fmt: skip
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["rows"] == 1_000
    assert summary["table"].startswith(f"{out}/table-")
    listed = s3_server.client.list_objects_v2(Bucket=bucket, Prefix="exports/all/")["Contents"]
    assert sum(each["Key"].endswith(".parquet") for each in listed) == summary["files"]
    written = [path for path in events.rglob("*") if path.is_file()]
    text = "".join(path.read_text(errors="replace") for path in written)
    assert "SparkListenerApplicationEnd" in text
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in text + done.stdout + done.stderr


def test_an_archive_that_is_no_bucket_is_one_error(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", s3_server.endpoint_url)
    with pytest.raises(StoreError, match="The specified bucket does not exist"):
        ArchiveSnapshot.take("s3://no-such-bucket-here/archive")
