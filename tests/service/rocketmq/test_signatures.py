"""Signatures of RocketMQ's clients: who is found by which, at both doors, and that nothing else is let in."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.service.access import line
from tierlog.service.access.caller import ANYBODY, Scope
from tierlog.service.access.control import AccessControl
from tierlog.service.config.serve import AccessSettings
from tierlog.service.rocketmq.access import MAX_SKEW_MS, SignedAccess
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import InvalidRequestError, UnauthenticatedError

SECRET = "12345678-secret-key"
NOW = datetime(2026, 11, 24, 14, 0, tzinfo=UTC)
#: Made by AclClientRPCHook of RocketMQ 5.4.0 for the key "shop" and SECRET.
SEND = {
    "AccessKey": "shop", "SecurityToken": "sts-1", "Signature": "grnaRKFbiMo9K5a7q2HXqDoHTxI=", "a": "orders-group",
    "b": "orders", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1790000000000", "h": "0",
    "i": "KEYS\x01köln-7\x02UNIQ_KEY\x017F0000010001\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
SEND_BODY = "grüße".encode()
HEARTBEAT = {"AccessKey": "shop", "Signature": "cS/3KAeNdFTdaq3Cls7XXCW5eIc="}
VERSION = 493


def entry(name: str, scopes: str = "produce", expires: str = "", *, secret: str = SECRET) -> str:
    hashed = line(name, scopes, "orders", expires).split(":")[1]
    return line(name, scopes, "orders", expires).replace(hashed, f"{hashed}/{secret}")


def access(*entries: str, clock: ManualClock | None = None) -> SignedAccess:
    clock = clock or ManualClock(int(NOW.timestamp() * 1000))
    return SignedAccess(AccessControl(AccessSettings(tokens="\n".join(entries)), clock), clock)


def metadata(date: str, *, name: str = "shop", secret: str = SECRET) -> dict[str, str]:
    code = hmac.new(secret.encode(), date.encode(), hashlib.sha1).hexdigest().upper()
    header = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={code}"
    return {"authorization": header, "x-mq-date-time": date}


def date_of(hours: float = 0) -> str:
    return (NOW + timedelta(hours=hours)).strftime("%Y%m%dT%H%M%SZ")


def test_what_javas_client_signs_is_its_callers() -> None:
    door = access(entry("shop"))
    for fields, body in ((SEND, SEND_BODY), (SEND, memoryview(SEND_BODY)), (HEARTBEAT, b"{}")):
        caller = door.of_fields(fields, body, VERSION)
        assert caller.name == "shop"
        assert caller.may(Scope.PRODUCE, "orders")


@pytest.mark.parametrize("field", sorted(SEND))
def test_a_changed_or_removed_field_breaks_the_signature(field: str) -> None:
    door = access(entry("shop"), entry("shop2"))
    for changed in (SEND | {field: SEND[field] + "2"}, {name: SEND[name] for name in SEND if name != field}):
        with pytest.raises(UnauthenticatedError):
            door.of_fields(changed, SEND_BODY, VERSION)


def test_another_body_an_added_field_and_odd_signatures_are_refused() -> None:
    door = access(entry("shop"))
    for fields, body in (
        (SEND, SEND_BODY + b"!"), (SEND, b""), (SEND | {"z": "1"}, SEND_BODY), (SEND | {"Signature": ""}, SEND_BODY),
        (SEND | {"Signature": "*"}, SEND_BODY), (SEND | {"Signature": "gr"}, SEND_BODY), ({}, b""),
        (SEND | {"Signature": "ü"}, SEND_BODY), (SEND | {"i": "\udcff"}, SEND_BODY),
    ):  # fmt: skip
        with pytest.raises(UnauthenticatedError):
            door.of_fields(fields, body, VERSION)


def test_the_answer_is_the_same_for_an_unknown_name_no_secret_an_expired_entry_and_another_secret() -> None:
    answers = set()
    for entries in (
        [entry("other")],
        [line("shop", "produce", "orders")],
        [entry("shop", expires="2026-01-01T00:00:00Z")],
        [entry("shop", secret="another-secret-key")],
    ):
        with pytest.raises(UnauthenticatedError) as refused:
            access(*entries).of_fields(HEARTBEAT, b"{}", VERSION)
        answers.add(str(refused.value))
        with pytest.raises(UnauthenticatedError) as refused:
            access(*entries).of_metadata(metadata(date_of()))
        answers.add(str(refused.value))
    assert len(answers) == 1
    assert SECRET not in answers.pop()


def test_the_field_that_old_clients_add_after_signing_is_left_out_for_them_alone() -> None:
    signed = {"AccessKey": "shop", "topic": "orders"}
    code = hmac.new(SECRET.encode(), b"shoporders", hashlib.sha1).digest()
    fields = signed | {"_UNIQUE_KEY_QUERY": "true", "Signature": base64.b64encode(code).decode()}
    assert access(entry("shop")).of_fields(fields, b"", 399).name == "shop"
    with pytest.raises(UnauthenticatedError):
        access(entry("shop")).of_fields(fields, b"", 401)


@pytest.mark.parametrize("hours", [0, -12, 14, 5.5, 8])
def test_a_grpc_call_is_its_callers_also_if_the_client_writes_the_time_of_its_own_zone(hours: float) -> None:
    assert access(entry("shop")).of_metadata(metadata(date_of(hours))).name == "shop"


def test_a_grpc_signature_ends_to_be_good() -> None:
    clock = ManualClock(int(NOW.timestamp() * 1000))
    door, signed = access(entry("shop"), clock=clock), metadata(date_of())
    clock.advance(12 * 3_600_000 + MAX_SKEW_MS)
    assert door.of_metadata(signed).name == "shop"
    clock.advance(1)
    with pytest.raises(UnauthenticatedError, match="too far from now"):
        door.of_metadata(signed)
    with pytest.raises(UnauthenticatedError, match="too far from now"):
        access(entry("shop")).of_metadata(metadata(date_of(14.5)))


def test_credentials_of_a_region_and_any_order_of_the_parts_are_read() -> None:
    signed = metadata(date_of())
    code = signed["authorization"].rpartition("=")[2].lower()
    signed["authorization"] = (
        f"MQv2-HMAC-SHA1 Signature={code},Credential=shop/eu-1/Rocketmq,SignedHeaders=x-mq-date-time"
    )
    assert access(entry("shop")).of_metadata(signed).name == "shop"


@pytest.mark.parametrize(
    "changed",
    [
        {"authorization": ""}, {"authorization": "Bearer x"}, {"x-mq-date-time": ""}, {"x-mq-date-time": date_of(1)},
        {"authorization": "MQv2-HMAC-SHA1"}, {"authorization": "MQv2-HMAC-SHA1 Credential=shop, Signature=zz"},
        {"authorization": "MQv2-HMAC-SHA1 Credential=shop" + "x" * 3_000},
    ],
)  # fmt: skip
def test_odd_metadata_is_refused(changed: dict[str, str]) -> None:
    with pytest.raises(UnauthenticatedError):
        access(entry("shop")).of_metadata(metadata(date_of()) | changed)


def test_a_signed_date_that_is_none_is_refused() -> None:
    with pytest.raises(UnauthenticatedError, match="is not a time such as"):
        access(entry("shop")).of_metadata(metadata("yesterday"))


def test_without_tokens_everybody_comes_in_and_only_on_the_loopback() -> None:
    clock = ManualClock()
    control = AccessControl(AccessSettings(), clock)
    for door in (SignedAccess(None, clock), SignedAccess(control, clock)):
        assert not door.is_on
        assert door.of_fields({}, b"", VERSION) is door.of_metadata({}) is ANYBODY
    for host in ("127.0.0.1", "127.3.4.5", "::1", "::1%lo"):
        control.check_listener(host, hint="")
    for host in ("0.0.0.0", "10.0.0.1", "::"):
        with pytest.raises(InvalidRequestError, match="listens on the loopback only, not on"):
            control.check_listener(host, hint="")
    AccessControl(AccessSettings(tokens=entry("shop")), clock).check_listener("0.0.0.0", hint="")
