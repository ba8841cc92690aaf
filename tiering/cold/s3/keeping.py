"""How S3 is to keep objects: storage class and encryption at rest."""

from __future__ import annotations

from dataclasses import dataclass

from tiering.errors import InvalidRequestError

#: Objects of these have to be asked for hours before they can be read.
_OFFLINE = ("GLACIER", "DEEP_ARCHIVE")
_DATA = ("log", "index")


@dataclass(frozen=True, slots=True)
class S3Keeping:
    """What every write says about keeping; None leaves it to the bucket.

    The storage class is for data alone, sorted segments and index objects: head, manifest, state and tails are small,
    read often and soon replaced, for which the cheaper classes ask more. Encryption is for everything.
    """

    storage_class: str | None = None
    sse: str | None = None
    """``AES256`` or ``aws:kms``."""
    sse_kms_key_id: str | None = None

    def __post_init__(self) -> None:
        if self.storage_class in _OFFLINE:
            raise InvalidRequestError(
                f"objects of storage class {self.storage_class} cannot be read at once",
                hint="GLACIER_IR is the coldest that can",
            )
        if self.sse_kms_key_id is not None and self.sse != "aws:kms":
            raise InvalidRequestError("a KMS key is for the encryption aws:kms")

    def arguments(self, key: str) -> dict[str, str]:
        """What a put, or the start of an upload, of ``key`` says."""
        is_data = key.split("/")[1:2] in ([folder] for folder in _DATA)
        chosen = {
            "StorageClass": self.storage_class if is_data else None,
            "ServerSideEncryption": self.sse,
            "SSEKMSKeyId": self.sse_kms_key_id,
        }
        return {name: value for name, value in chosen.items() if value is not None}


DEFAULT_KEEPING = S3Keeping()
