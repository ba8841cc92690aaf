"""Every error tierlog raises, chosen by what the caller must do about it.

::

    StoreError
    ├── InvalidRequestError (ValueError)     fix the call
    │   ├── MessageTooLargeError
    │   └── InvalidHandleError               the delivery is over: take the handle of the last one
    ├── NotFoundError (LookupError)          nothing is there
    │   ├── TopicNotFoundError
    │   ├── MessageNotFoundError
    │   ├── MemberNotFoundError
    │   └── ObjectNotFoundError
    ├── CorruptionError                      stop; keep the bytes for a look
    │   ├── ChecksumMismatchError
    │   ├── BadMagicError
    │   └── TornRecordError
    ├── UnsupportedFormatError               a newer tierlog wrote this: upgrade
    ├── ConflictError                        reload and decide again
    │   ├── TopicHeldError
    │   ├── PreconditionFailedError
    │   ├── StaleGenerationError
    │   ├── StoreLockedError
    │   ├── RequestUnderWayError (retryable) send the request again in a moment
    │   ├── KeyReusedError                   take another idempotency key
    │   ├── FollowedError                    send to the broker that the store follows
    │   ├── DivergedError                    the broker's log is another one than the archive has: an operator decides
    │   └── StoreMismatchError
    ├── UnavailableError  (retryable)        back off and try again
    │   ├── ObjectStoreUnavailableError
    │   ├── ThrottledError
    │   ├── OutOfResourcesError              the machine has no descriptor or memory to spare for now
    │   ├── OverloadedError                  the service has too much to do at once
    │   ├── InFlightError                    acknowledge what was delivered
    │   └── DeadlineError                    the service gave the request up
    ├── AccessError
    │   ├── UnauthenticatedError             send a token that is known
    │   └── ForbiddenError                   ask for the right
    ├── FencedError                          another volume writes this store now; salvage
    ├── ReadOnlyError                        the store stopped writing: repair the disk, restart
    │   └── DiskFailedError                  the disk refused one operation
    ├── CapacityError
    │   └── DiskFullError                    free space
    └── ClosedError                          make a new instance

Messages are lower case without a full stop. ``path``, ``position`` and ``hint`` are kept apart from the
message, so that the command line and the REST problem document can show them in their own way.
"""

from __future__ import annotations


class StoreError(Exception):
    """Root of the tree; ``retryable`` says whether the same call may succeed later."""

    retryable = False
    retry_after_s = 0.0
    """Seconds for which a service that answered with this asked to be left alone; 0 if it did not."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        position: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.position = position
        self.hint = hint

    def __str__(self) -> str:
        where = f" [{self.path}" if self.path else ""
        if where:
            where += "]" if self.position is None else f" at {self.position}]"
        return self.message + where + (f"; {self.hint}" if self.hint else "")


class InvalidRequestError(StoreError, ValueError):
    """The call itself is wrong; nothing was changed."""


class MessageTooLargeError(InvalidRequestError):
    """A body, property text or record is over its limit; nothing was changed."""


class InvalidHandleError(InvalidRequestError):
    """A handle is none, or of a delivery that is over: acknowledged, given up, or followed by another one."""


class NotFoundError(StoreError, LookupError):
    """What was asked for is known not to exist (never: could not be read)."""


class TopicNotFoundError(NotFoundError):
    """No such topic or queue."""


class MessageNotFoundError(NotFoundError):
    """No message has this id."""


class MemberNotFoundError(NotFoundError):
    """The consumer group has no such live member: it has to join again."""


class ObjectNotFoundError(NotFoundError):
    """The object store answered that there is no such object."""


class CorruptionError(StoreError):
    """Bytes are not what was written."""


class ChecksumMismatchError(CorruptionError):
    """A checksum does not match its bytes."""


class BadMagicError(CorruptionError):
    """A file or section does not start with the magic of its format."""


class TornRecordError(CorruptionError):
    """A record or section is cut short or contradicts its own lengths."""


class UnsupportedFormatError(StoreError):
    """The format version is newer than this software."""


class ConflictError(StoreError):
    """The state changed under the caller, who must look again."""


class TopicHeldError(ConflictError):
    """A topic is on hold: nothing of it may be erased or expire until that has ended."""


class PreconditionFailedError(ConflictError):
    """A conditional write found another version of the object."""


class StaleGenerationError(ConflictError):
    """The membership of the consumer group has changed since: heartbeat to learn the new assignment."""


class StoreLockedError(ConflictError):
    """Another process holds the store directory."""


class RequestUnderWayError(ConflictError):
    """The same request is still being handled; sent again later, it gets that request's result."""

    retryable = True


class KeyReusedError(ConflictError):
    """The idempotency key was used before, for other messages."""


class FollowedError(ConflictError):
    """The store follows a RocketMQ broker, which alone appends to it."""


class DivergedError(ConflictError):
    """The log of a broker differs from what the archive has of it."""


class StoreMismatchError(ConflictError):
    """The store or the bucket was made with other settings, or belongs to another volume."""


class UnavailableError(StoreError):
    """The other side did not answer or refused for now."""

    retryable = True


class ObjectStoreUnavailableError(UnavailableError):
    """The object store failed or timed out; says nothing about whether the object exists."""


class ThrottledError(UnavailableError):
    """The object store asked to slow down."""


class OutOfResourcesError(UnavailableError):
    """The system had no descriptor or memory left for a call, which changed nothing; the same call may succeed later.

    It says nothing about the disk, so nothing is given up because of it.
    """


class OverloadedError(UnavailableError):
    """The service does too much at once for this request as well; nothing of it was done."""


class InFlightError(UnavailableError):
    """A group has as many messages delivered and not acknowledged as it may have; nothing new was given."""


class DeadlineError(UnavailableError):
    """The service gave a request up that took too long; its work may have been done or not."""


class AccessError(StoreError):
    """The caller may not do this; nothing was done."""


class UnauthenticatedError(AccessError):
    """The request has no token, or one that is not known."""


class ForbiddenError(AccessError):
    """The token is known, but not for this."""


class FencedError(StoreError):
    """Another volume has taken this store over; this one must never write to the archive again."""


class ReadOnlyError(StoreError):
    """The store has stopped accepting writes after a failure of its disk; reads go on."""


class DiskFailedError(ReadOnlyError):
    """The disk refused an operation for another reason than space; says nothing about what exists."""


class CapacityError(StoreError):
    """A resource is used up."""


class DiskFullError(CapacityError):
    """The disk has no room for the write; nothing was acknowledged."""


class ClosedError(StoreError):
    """The instance was closed."""
