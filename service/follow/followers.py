"""All brokers that one process follows, each into a store of its own below one root."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from tierlog.service.config.settings import Settings
from tierlog.service.engine.stats import ReadinessProblem
from tierlog.service.follow.followed_broker import FollowedBroker
from tierlog.service.follow.followed_directory import FollowedDirectory, store_id_of
from tierlog.service.follow.follower import Follower
from tierlog.service.follow.upstream import Upstream, check_settings, upstream_of
from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import FileSystem, LocalFileSystem
from tierlog.tiering.base.randomness import Randomness, SystemRandomness
from tierlog.tiering.base.telemetry import NO_TRACER, Tracer
from tierlog.tiering.objects.object_store import ObjectStore

#: Told when a store was opened, is going to be closed (then the broker has none), or takes messages from now on.
Listener = Callable[[FollowedBroker], None]


class Followers:
    """The followers of a process. :meth:`open`, then :meth:`start`; :meth:`stop` closes all stores within 10 s."""

    def __init__(self, followers: Sequence[Follower], listeners: list[Listener]) -> None:
        """Use :meth:`of`."""
        self._followers = tuple(followers)
        self._listeners = listeners

    @classmethod
    def of(
        cls,
        root: Path,
        settings: Settings,
        *,
        cold_url: str | None = None,
        store_id: str | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        fs: FileSystem | None = None,
        objects: ObjectStore | None = None,
        tracer: Tracer = NO_TRACER,
        upstream: Callable[[str], Upstream] | None = None,
    ) -> Followers:
        """Makes the followers of the settings; nothing is opened or asked yet.

        The store of a broker lies in ``root`` / its id, which ``store_id`` is for the only broker. Raises
        :class:`InvalidRequestError` for settings that contradict each other.
        """
        clock, fs = clock or SystemClock(), fs or LocalFileSystem()
        check_settings(settings.follow)
        names = settings.follow.brokers
        if store_id is not None and len(names) > 1:
            raise InvalidRequestError(f"--store-id is of one broker, and {len(names)} are named")
        ids = [store_id or store_id_of(name) for name in names]
        if len(set(ids)) < len(ids):
            raise InvalidRequestError(
                f"brokers {', '.join(names)} would have the same store: {', '.join(ids)}",
                hint="follow one of them by a process of its own, with --store-id ID",
            )
        listeners: list[Listener] = []

        def changed(broker: FollowedBroker) -> None:
            for listener in listeners:
                listener(broker)

        followers = [
            Follower(
                upstream_of(name, settings.follow, clock, fs) if upstream is None else upstream(name),
                FollowedDirectory(
                    own, root.absolute() / own, cold_url, settings, clock=clock,
                    randomness=randomness or SystemRandomness(), fs=fs, objects=objects, tracer=tracer,
                ),
                changed=changed,
            )
            for name, own in zip(names, ids, strict=True)
        ]  # fmt: skip
        return cls(followers, listeners)

    def listen(self, listener: Listener) -> None:
        """Has changes of stores told, on the thread of the follower; before :meth:`open`."""
        self._listeners.append(listener)

    def open(self, *, restore: bool = False, promote_now: bool = False) -> None:
        """Opens all stores; those that are new need their brokers. Raises what :meth:`Follower.open` raises."""
        try:
            for follower in self._followers:
                follower.open(restore=restore, promote_now=promote_now)
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Begins to follow."""
        for follower in self._followers:
            follower.start()

    def brokers(self) -> Sequence[FollowedBroker]:
        """Returns what is known of each broker, in the order of the settings."""
        return [follower.broker for follower in self._followers]

    @property
    def readiness_problem(self) -> ReadinessProblem | None:
        """The first reason why a broker is not followed as it should be; None if all are."""
        return next(filter(None, (broker.problem for broker in self.brokers())), None)

    def stop(self) -> None:
        """Ends all followers and closes their stores, side by side. Idempotent."""
        for follower in self._followers:
            follower.ask_to_stop()
        threads = [threading.Thread(target=follower.stop, daemon=True) for follower in self._followers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
