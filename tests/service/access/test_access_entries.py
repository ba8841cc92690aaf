"""Entries of tokens: who is found by which, and what a wrong entry is told."""

from __future__ import annotations

import pytest

from tests.support.service.access import line, token
from tierlog.service.access.caller import Scope
from tierlog.service.access.tokens import (
    MAX_LENGTH,
    PREFIX,
    digest,
    find_caller,
    new_secret,
    new_token,
    read_lines,
    read_toml,
)
from tierlog.tiering.base.errors import ForbiddenError, InvalidRequestError
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.times import parse_time

FILE = "/etc/tokens.toml"


def toml(**fields: str) -> str:
    values = {
        "name": '"billing"', "sha256": f'"{"ab" * 32}"', "scopes": '["read"]', "topics": '["shop-*"]', **fields,
    }  # fmt: skip
    return "[[token]]\n" + "".join(f"{name} = {value}\n" for name, value in values.items() if value)


def test_a_token_has_256_bits_and_a_prefix_and_is_nowhere_in_its_entry() -> None:
    made = {new_token(SystemRandomness()) for _ in range(100)}
    assert len(made) == 100
    assert all(one.startswith(PREFIX) and len(one) == len(PREFIX) + 64 for one in made)
    one = made.pop()
    entries = read_toml(toml(sha256=f'"{digest(one).hex()}"'), FILE)
    assert one not in repr(entries)
    found = find_caller(entries, one, now_ms=0)
    assert found is not None
    assert (found.name, found.scopes, found.topics) == ("billing", frozenset({Scope.READ}), ("shop-*",))


def test_both_forms_say_the_same() -> None:
    written = toml(
        sha256=f'"{digest("t-billing").hex()}"', scopes='["read", "produce"]', topics='["a", "b-?"]',
        expires="2027-01-31T00:00:00Z",
    )  # fmt: skip
    assert read_toml(written, FILE) == read_lines(
        line("billing", "produce,read", "a,b-?", "2027-01-31T00:00:00Z"), "the environment"
    )


def test_only_a_whole_token_is_found_and_only_until_it_expires() -> None:
    entries = read_lines(
        f"# who\n{line('a', 'read', '*')};{line('b', 'admin', 'x', '2027-01-31T00:00:00Z')}\n\n", "the environment"
    )
    end_ms = parse_time("2027-01-31T00:00:00Z")
    names = {name: find_caller(entries, token(name), end_ms - 1) for name in ("a", "b", "c")}
    assert {name: found and found.name for name, found in names.items()} == {"a": "a", "b": "b", "c": None}
    assert find_caller(entries, token("b"), end_ms) is None
    for odd in ("", "t", "t-a ", "T-A", digest(token("a")).hex(), "\udcff", "x" * (MAX_LENGTH + 1)):
        assert find_caller(entries, odd, 0) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[token]", "not TOML"),
        ("", "consists of tables [[token]]"),
        ("token = 1", "consists of tables [[token]]"),
        ("x = 1\n" + toml(), "consists of tables [[token]]"),
        (toml(name=""), "entry 1: `name` must be"),
        (toml(name='"a b"'), "entry 1: `name` must be"),
        (toml(sha256='"AB"'), "entry 1 (billing): `sha256` must be the 64 lower-case hex digits"),
        (toml(sha256=f'"{PREFIX}0123"'), "has the token itself, which now counts as lost"),
        (toml(scopes='["write"]'), "a scope is one of 'produce', 'read', 'admin', not one of ['write']"),
        (toml(scopes='"read"'), "`scopes` must be a list of strings"),
        (toml(scopes="[]"), "good for nothing"),
        (toml(topics=""), "`topics` must be a list of strings"),
        (toml(topics='["a/b"]'), "the topic pattern 'a/b' fits no topic's name"),
        (toml(expires="2027-01-31T00:00:00"), "has no time zone"),
        (toml(expires="2027-01-31"), "must be a time such as"),
        (toml(expires='"soon"'), "must be a time such as"),
        (toml(expire="1"), "there is no field 'expire'"),
        (toml(secret='"short-s3cret"'), "`secret` must be 16 to 256 letters"),
        (toml(secret='"s3cret s3cret s3cret"'), "`secret` must be 16 to 256 letters"),
        (toml(secret="1234567890123456"), "`secret` must be 16 to 256 letters"),
        (toml(secret=f'"{PREFIX}s3cret-s3cret"'), "`secret` has the token itself"),
        (toml(secret='"t-s3cret-s3cret-1"', sha256=f'"{digest("t-s3cret-s3cret-1").hex()}"'), "has the token itself"),
        (toml(secret='"s3cret-s3cret-s3cret"', scopes='["s3cret"]'), "a scope is one of 'produce', 'read', 'admin'"),
        (toml(secret='"s3cret-s3cret-s3cret"', topics='["s3cret/"]'), "a topic pattern fits no topic's name"),
        (toml() + toml(sha256=f'"{"cd" * 32}"'), "the name 'billing' stands twice"),
        (toml() + toml(name='"other"'), "the token of 'other' has another entry too"),
    ],
)
def test_a_wrong_entry_is_refused_in_a_sentence_that_names_it(text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_toml(text, FILE)
    assert words in refused.value.message
    assert refused.value.path == FILE
    assert PREFIX not in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_secret_is_read_in_both_forms_and_shown_in_none() -> None:
    secret = "from+base64/of==16.bytes"
    hashed = digest("t-billing").hex()
    written = toml(sha256=f'"{hashed}"', secret=f'"{secret}"')
    (entry,) = read_toml(written, FILE)
    assert read_lines(f"billing:{hashed}/{secret}:read:shop-*", "the environment") == [entry]
    assert entry.secret == secret
    assert secret not in repr(entry)
    assert read_toml(toml(), FILE)[0].secret is None
    made = {new_secret(SystemRandomness()) for _ in range(100)}
    assert len(made) == 100
    assert all(read_toml(toml(secret=f'"{one}"'), FILE)[0].secret == one for one in made)


@pytest.mark.parametrize("odd", ["a:s3cret-s3cret", "s3cret-s3cret;s3cret-s3cret", ""])
def test_a_secret_that_does_not_fit_a_line_is_not_repeated(odd: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_lines(
            f"billing:{'ab' * 32}/0123456789abcdef{odd}:read:shop-*" if odd else f"a:{'ab' * 32}/:read:x", "here"
        )
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "a:b:c", "# nobody", f"a:{'ab' * 32}:read", "a:b:read:x:y:z"])
def test_wrong_entries_of_the_environment_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        read_lines(text, "TIERLOG_ACCESS_TOKENS")


def test_patterns_are_the_shells_and_none_means_no_topic_at_all() -> None:
    entries = read_lines(
        f"{line('some', 'read', 'shop-*,a?c')}\n{line('numbers', 'read', '')}\n{line('all', 'read', '*')}", "here"
    )
    some, numbers, everything = (entry.caller for entry in entries)
    allowed = [topic for topic in ("shop-", "shop-1", "Shop-1", "abc", "abbc") if some.may(Scope.READ, topic)]
    assert allowed == ["shop-", "shop-1", "abc"]
    assert numbers.may(Scope.READ)
    assert not numbers.may(Scope.READ, "shop-1")
    assert not everything.may(Scope.PRODUCE, "shop-1")
    with pytest.raises(ForbiddenError, match="has no right to read all topics"):
        some.check_everywhere(Scope.READ)
    everything.check_everywhere(Scope.READ)
