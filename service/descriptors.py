"""How many file descriptors the process may have, and how they are shared between the store and connections.

Files that are mapped hold none (``tiering.libc``), so what a store needs does not grow with it: the active segment, the
lock, and for a moment each what threads open, locally and to the bucket.
"""

from __future__ import annotations

import resource

from service.accepting import ACCEPTED_AT_ONCE
from service.settings import Settings
from tiering.errors import InvalidRequestError

#: Of what is opened once: standard streams, the event loop, the lock, segment, audit log and listener, tracing; with as
#: many again for what libraries open, and background threads.
_ALWAYS = 64
#: A service for fewer connections is none.
_LEAST = 16


def share_descriptors(settings: Settings, *, forwards: bool) -> int:
    """How many connections there may be: ``serve.max_connections``, or what the limit leaves beside the store.

    The soft limit of the process is raised as far as that needs and the hard one allows. ``forwards``: each connection
    may need a second one, to another node. Raises :class:`InvalidRequestError` where the limit leaves hardly any.
    """
    kept, each = kept_descriptors(settings), 2 if forwards else 1
    wanted = kept + each * settings.serve.max_connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return settings.serve.max_connections
    most = min(settings.serve.max_connections, (soft - kept) // each)
    if most < min(_LEAST, settings.serve.max_connections):
        raise InvalidRequestError(
            f"the process may open {soft} files, and the store alone needs {kept}",
            hint=f"raise the limit (ulimit -n, LimitNOFILE) to {wanted}, or lower serve.append_threads and "
            "serve.read_threads",
        )
    return most


def kept_descriptors(settings: Settings) -> int:
    """How many are the store's."""
    serve = settings.serve
    threads = serve.append_threads + serve.read_threads + serve.stream_threads + serve.admin_threads
    files = threads + settings.query.threads  # one each, for a moment
    return _ALWAYS + ACCEPTED_AT_ONCE + files + settings.cold.connections
