"""Certificates that a test makes with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """Signs certificates for 127.0.0.1; files lie in ``folder``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.file = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", str(self.key), "-out", str(self.file), "-days", "30",
            "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip

    def sign(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", str(key), "-out", str(request), "-addext", "subjectAltName=IP:127.0.0.1",
        )  # fmt: skip
        openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.file), "-CAkey", str(self.key), "-days", "30",
            "-copy_extensions", "copy", "-out", str(certificate),
        )  # fmt: skip
        return certificate, key
