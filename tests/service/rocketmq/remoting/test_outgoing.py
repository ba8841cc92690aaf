"""What goes out to one client: in order, whole, and what was lent is let go of once."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from tierlog.service.rocketmq.remoting.connection import Outgoing


class _Socket:
    """Takes so many bytes at a time, and none after the last."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts
        self.taken = b""

    def sendmsg(self, parts: list[bytes | memoryview]) -> int:
        if not self.counts:
            raise BlockingIOError
        data = b"".join(parts)[: self.counts.pop(0)]
        self.taken += data
        return len(data)


def _sent(out: Outgoing, sock: _Socket) -> None:
    try:
        out.send(sock.sendmsg)
    except BlockingIOError:
        return


@given(
    lends=st.lists(st.booleans(), min_size=6, max_size=6),
    answers=st.lists(st.lists(st.binary(max_size=20), max_size=4), max_size=6),
    counts=st.lists(st.integers(1, 30), max_size=30),
    copies=st.booleans(),
)
def test_bytes_go_in_order_and_each_answer_is_let_go_of_when_it_has_gone(
    answers: list[list[bytes]], counts: list[int], copies: bool, lends: list[bool]
) -> None:
    out, released = Outgoing(), list[int]()
    for number, parts in enumerate(answers):
        out.add([memoryview(part) for part in parts], partial(released.append, number) if lends[number] else None)
    wanted = b"".join(part for parts in answers for part in parts)
    sock = _Socket(counts)
    _sent(out, sock)
    assert wanted.startswith(sock.taken)
    assert out.waiting == len(wanted) - len(sock.taken)
    ends = [sum(len(part) for parts in answers[: number + 1] for part in parts) for number in range(len(answers))]
    lenders = [number for number in range(len(answers)) if lends[number]]
    assert released == [number for number in lenders if ends[number] <= len(sock.taken)]
    if copies:
        out.let_go()
        assert released == lenders
    sock.counts = [1000] * 30
    _sent(out, sock)
    assert sock.taken == wanted
    assert released == lenders
    assert out.taken == len(wanted)


def test_what_is_copied_outlives_what_was_lent() -> None:
    lent = bytearray(b"lent")
    out, sock = Outgoing(), _Socket([2])
    out.add([memoryview(lent)], lambda: lent.__setitem__(slice(None), b"gone"))
    _sent(out, sock)
    out.let_go()
    assert lent == b"gone"
    sock.counts = [10]
    _sent(out, sock)
    assert sock.taken == b"lent"


def test_a_connection_that_goes_lets_go_of_everything_once() -> None:
    out, released = Outgoing(), list[str]()
    for name in "ab":
        out.add([b"x"], partial(released.append, name))
    out.drop()
    out.drop()
    assert (released, out.waiting) == (["a", "b"], 0)
