"""The tokens that are good now: those of the environment, and those of a file that is read again when it changes."""

from __future__ import annotations

import ipaddress
import logging
import os
import threading
from pathlib import Path

from tierlog.service.access.caller import Caller
from tierlog.service.access.tokens import Entry, check_unique, find_caller, read_lines, read_toml
from tierlog.service.config.serve import AccessSettings
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import is_scarcity
from tierlog.tiering.remote.endpoint import warn_if_open

_LOG = logging.getLogger("tierlog")
#: Interval at which the file is checked for a change.
_LOOK_S = 1.0
_Stamp = tuple[int, int, int, int]


class AccessControl:
    """Finds the caller whose token a request has. Thread safe.

    The file is looked at once a second at most, when a request comes. Replace it by renaming another over it, as
    Kubernetes does with a mounted secret. A new one with a mistake, an empty or a missing one changes nothing, and an
    error is logged once.
    """

    def __init__(self, settings: AccessSettings, clock: Clock) -> None:
        """Reads all entries; :class:`InvalidRequestError` says in full what is wrong with which."""
        self._clock = clock
        self._path = None if settings.tokens_file is None else Path(settings.tokens_file)
        self._fixed = [] if settings.tokens is None else read_lines(settings.tokens, "TIERLOG_ACCESS_TOKENS")
        self._lock = threading.Lock()
        self._stamp = None if self._path is None else _stamp(self._path)
        self._entries = self._read()
        self._looked_s = clock.monotonic_s()

    @property
    def is_on(self) -> bool:
        """Whether anybody has to show a token; False if no entry was given at all."""
        return bool(self._entries)

    def caller(self, token: str) -> Caller | None:
        """Returns the caller whose token it is, None for an unknown or expired one."""
        self._look()
        return find_caller(self._entries, token, self._clock.now_ms())

    def entry(self, name: str) -> Entry | None:
        """Returns the entry of a name, whose secret verifies what its holder signs; None for an unknown or expired
        one."""
        self._look()
        found = next((entry for entry in self._entries if entry.caller.name == name), None)
        return found if found is not None and found.is_valid(self._clock.now_ms()) else None

    def check_listener(self, host: str, *, hint: str) -> None:
        """Refuses an address beyond the loopback where nobody has to show a token."""
        if not self.is_on and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
            raise InvalidRequestError(
                f"without tokens the service listens on the loopback only, not on {host}", hint=hint
            )

    def _look(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._path is None or now_s - self._looked_s < _LOOK_S:
            return
        with self._lock:
            self._looked_s = now_s
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            before, self._stamp = self._stamp, stamp
            try:
                self._entries = self._read()
            except InvalidRequestError as error:
                _LOG.error("the tokens stay as they were: %s", error)
                if is_scarcity(error.__cause__):  # a withdrawn token must not stay known
                    self._stamp = before
            else:
                _LOG.warning("read %d tokens anew from %s", len(self._entries), self._path)

    def _read(self) -> list[Entry]:
        if self._path is None:
            return self._fixed
        warn_if_open(self._path, "the tokens file, which has their hashes, rights and secrets")
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            words = error.strerror or str(error)
            raise InvalidRequestError(f"cannot read the tokens file: {words}", path=str(self._path)) from error
        except UnicodeDecodeError as error:
            raise InvalidRequestError("the tokens file is not UTF-8", path=str(self._path)) from error
        entries = [*self._fixed, *read_toml(text, str(self._path))]
        check_unique(entries, str(self._path))
        return entries


def _stamp(path: Path) -> _Stamp | None:
    """Returns a value that changes whenever the file is replaced, also behind a symlink; None while there is no
    file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
