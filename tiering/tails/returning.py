"""Puts back what a volume has lost of its log and the tails in the bucket still have.

A tail holds flushed bytes only, so a log that ends before them was cut short by damage, or by a disk that forgot what
it had flushed. Messages in there may have been acknowledged as archived: they come back under their old offsets, and
nothing else may ever get these. How far tails may reach is known from ``tierlog/tails.json``, and from the bucket
where it answers, which also sees that the volume is an old copy of itself.

Killed in here: the log ends where it did, or further on, and the next opening does the rest.
"""

from __future__ import annotations

from tiering.cold.tail_objects import TailObjects
from tiering.errors import CorruptionError, UnavailableError
from tiering.format.manifest import Head
from tiering.format.tail import TailHead, TailKind
from tiering.hot.commit_log import CommitLog
from tiering.hot.store import HotStore
from tiering.tails.mark import TailMark


class LostTail:
    """What is known of the tails of one volume while it is opened; used by one thread at a time."""

    def __init__(self, mark: TailMark, volume_id: str) -> None:
        self._mark = mark
        self._volume_id = volume_id
        self._tails: TailObjects | None = None
        self._archived_to = 0
        self._chain: list[TailHead] = []

    def look(self, tails: TailObjects, head: Head) -> list[TailHead]:
        """Follow the chain from where it is known to lead; one request where there is nothing new."""
        return [*tails.follow(max(head.archived_to, self._mark.confirmed))]

    def saw(self, tails: TailObjects, head: Head, chain: list[TailHead]) -> None:
        """Take what a look has found; without it the bucket counts as unreachable."""
        self._archived_to, self._tails, self._chain = head.archived_to, tails, chain

    def put_back(self, log: CommitLog, end: int) -> bool:
        """Write what tails have from ``end`` on into the log; returns whether there was any."""
        if self._tails is None or end >= self._reach():
            return False
        try:
            return self._put_back_from(self._tails, log, end)
        except UnavailableError:
            self._tails = None
            return True  # some of it may have been written

    def _put_back_from(self, tails: TailObjects, log: CommitLog, end: int) -> bool:
        chain = self._chain
        if not chain or chain[0].first > end:
            chain = [*tails.follow(self._archived_to)]
        found = False
        for said in chain:
            if said.kind is TailKind.FENCE or said.volume_id != self._volume_id:
                break
            if said.end > end:
                self._put_back_one(tails, log, said, end)
                found = True
        return found

    def _put_back_one(self, tails: TailObjects, log: CommitLog, said: TailHead, end: int) -> None:
        tail = tails.read(said.first)
        if tail is None or tail.head != said:
            raise CorruptionError("a tail was replaced while it was read", path="tail", position=said.first)
        if said.first < end:
            segment = log.segment_of(said.first)
            kept = bytes(segment.data[said.first - segment.base_offset : end - segment.base_offset])
            if tail.payload[: len(kept)] != kept:
                raise CorruptionError(
                    "a tail in the bucket holds other bytes than the log", path="commitlog", position=said.first
                )
        log.put_back(said.first, tail.payload, said.end)

    def settle(self, hot: HotStore) -> None:
        """After recovery: make sure that no offset which a tail may have is given out again.

        What no tail has up to the mark was never acknowledged as archived, but may still arrive in the bucket: the
        log goes on in the next segment. Where the bucket could not be asked, the store stays read-only.
        """
        end, reach = hot.log.end, self._reach()
        if end >= reach:
            return
        if self._tails is not None:
            hot.roll()
        else:
            hot.guard.turn_read_only(
                f"the log ends at {end}, and messages up to {reach} may be in the bucket: "
                "open the store again when the bucket can be reached"
            )

    def _reach(self) -> int:
        last = max((said.end for said in self._chain if said.volume_id == self._volume_id), default=0)
        return max(self._mark.end, last)
