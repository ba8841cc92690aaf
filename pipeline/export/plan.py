"""What an export is to hold, fixed before anything of it is written, so that running it again gives the same."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.archive import ArchiveSnapshot, PinnedStore
from pipeline.predicate import Predicate, Span
from tiering.errors import CorruptionError


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The arguments that decide what is exported; JSON names are those of the fields."""

    cold: str
    stores: tuple[str, ...]
    topics: tuple[str, ...]
    from_ms: int | None
    to_ms: int | None
    json_schema: str | None
    task_bytes: int

    @property
    def predicate(self) -> Predicate:
        """Which messages are asked for."""
        return Predicate(topics=frozenset(self.topics) or None, stored=Span(self.from_ms, self.to_ms))

    def to_json(self) -> dict[str, object]:
        """JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """A request, the heads that all its tasks read by, and the folder of its table."""

    request: ExportRequest
    table: str
    heads: Mapping[str, bytes]

    @classmethod
    def make(cls, request: ExportRequest, snapshot: ArchiveSnapshot, nonce: str) -> ExportPlan:
        """A plan for what an archive holds now; ``nonce`` makes the table's name one that nobody knows yet."""
        heads = {store_id: store.encoded_head for store_id, store in snapshot.stores.items()}
        return cls(request, f"table-{nonce}", heads)

    @property
    def stores(self) -> dict[str, PinnedStore]:
        """The stores in the order of their ids, each at its head."""
        heads = sorted(self.heads.items())
        return {store_id: PinnedStore(self.request.cold, store_id, head) for store_id, head in heads}

    def encode(self) -> bytes:
        """The plan's object."""
        heads = {store_id: base64.b64encode(head).decode() for store_id, head in self.heads.items()}
        return json.dumps({"request": self.request.to_json(), "table": self.table, "heads": heads}).encode()

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> ExportPlan:
        """Inverse of :meth:`encode`; :class:`CorruptionError` for anything else."""
        try:
            value = json.loads(data)
            request = dict(value["request"])
            for name in ("stores", "topics"):
                request[name] = tuple(request[name])
            heads = {store_id: base64.b64decode(head) for store_id, head in value["heads"].items()}
            return cls(ExportRequest(**request), value["table"], heads)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptionError("this is not the plan of an export", path=path) from error
