"""One failure to flush is final: the kernel tells an error once, and the next flush succeeds though bytes are lost."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

from tiering.errors import DiskFailedError, OutOfResourcesError, StoreError


class FlushGuard:
    """Lets no flush of a file follow one that failed."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._failure: StoreError | None = None

    @property
    def has_failed(self) -> bool:
        """Whether a flush has failed."""
        return self._failure is not None

    def check(self) -> None:
        """Raise :class:`DiskFailedError` if a flush has failed."""
        if self._failure is not None:
            raise DiskFailedError("an earlier flush failed", path=self._path) from self._failure

    def flushing(self) -> AbstractContextManager[None]:
        """Flush inside; refused after a failure, and a failure is remembered.

        A file that could not be opened for it was not flushed, and can be.
        """
        return self

    def __enter__(self) -> None:
        self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StoreError) and not isinstance(error, OutOfResourcesError):
            self._failure = error
