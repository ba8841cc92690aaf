"""Run once by docker/compose.yaml: ``setup.py BUCKET FOLDER`` makes the bucket and a token, where they are missing.

The token goes to ``FOLDER/admin.token``, which only the service's user can read, its entry to ``FOLDER/tokens.toml``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import boto3
from botocore.config import Config

_TRIES = 20
_FOLDER_MODE = 0o700


def make_bucket(name: str) -> None:
    """Make the bucket unless it is there; the server beside this container may still be starting."""
    client = boto3.client(
        "s3",
        endpoint_url=os.environ["TIERLOG_S3_ENDPOINT"],
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": _TRIES, "mode": "standard"}),
    )
    if name not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=name)
        print(f"setup: made the bucket {name}")


def make_token(folder: Path) -> None:
    """Make a token with every right unless there is one; both files are complete or not there."""
    token, entries = folder / "admin.token", folder / "tokens.toml"
    if token.exists() and entries.exists():
        return
    folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    command = ["tierlog", "token", "admin", "--topic", "*", "--format", "json"]
    for scope in ("produce", "read", "admin"):
        command += ["--scope", scope]
    made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    os.umask(0o077)
    for path, member in ((entries, "entry"), (token, "token")):
        half = path.with_name(f"{path.name}.half")
        half.write_text(made[member] + "\n")
        half.replace(path)
    print(f"setup: the token is in {token}")


if __name__ == "__main__":
    make_bucket(sys.argv[1])
    make_token(Path(sys.argv[2]))
