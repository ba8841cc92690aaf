"""A made-up service log of the kind people have: ``python -m tierlog.service.sample [--lines N] [--seed S] >
shop.log``.

The same seed gives the same bytes on every machine. In it: CRLF line ends if asked for, lines with several
keys and now and then one with about a hundred, long lines, traces whose lines have no time, text beyond
ASCII, empty lines, and no line end after the last line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from tierlog.tiering.base.randomness import SeededRandomness

#: How to load what comes out of here.
KEY_PATTERNS = (r"ord-\d+", r"pay-[0-9a-f]{12}", r"\d+\.\d+\.\d+\.\d+")
TAG_PATTERN = r" (INFO|WARN|ERROR) "
BORN_PATTERN = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
BORN_FORMAT = "%Y-%m-%d %H:%M:%S,%f"
DEFAULT_LINES = 20_000

_START = datetime(2026, 3, 1, 6, 0, tzinfo=UTC)
_CITIES = ("Köln", "Łódź", "São Paulo", "Oslo", "Kraków", "Zürich", "大阪", "Utrecht", "Porto", "Győr")
_THREADS = ("http-1", "http-2", "http-3", "batch-1", "mailer")


class _Dice:
    """A source of whole numbers out of the seeded sequence."""

    def __init__(self, seed: int) -> None:
        self._source = SeededRandomness(seed)

    def below(self, end: int) -> int:
        return int(self._source.token_hex(6), 16) % end

    def one_of(self, values: tuple[str, ...]) -> str:
        return values[self.below(len(values))]

    def hex(self, digits: int) -> str:
        return self._source.token_hex((digits + 1) // 2)[:digits]


class _Shop:
    """Orders on their way through a shop, each mentioned several times."""

    def __init__(self, seed: int) -> None:
        self._dice = _Dice(seed)
        self._now = _START
        self._open: list[tuple[str, str, str]] = []
        self._next = 100_000

    def line(self) -> list[str]:
        """Returns the next event: one line, or a trace of several."""
        dice = self._dice
        self._now += timedelta(milliseconds=dice.below(900))
        event = dice.below(1000)
        if event == 0:
            return [self._said("INFO", "ledger.Settlement", "settled " + " ".join(self._recent(100)))]
        if event == 1:
            return [self._said("WARN", "shop.Audit", "request dump " + dice.hex(2 * (1500 + dice.below(1500))))]
        if event < 6:
            return self._trace()
        if event < 10:
            return [""]
        if event < 350 or not self._open:
            return [self._accepted()]
        return [self._followed(event)]

    def _accepted(self) -> str:
        dice = self._dice
        self._next += 1 + dice.below(3)
        order = (
            f"ord-{self._next}",
            f"pay-{dice.hex(12)}",
            f"10.{dice.below(4)}.{dice.below(8)}.{1 + dice.below(60)}",
        )
        self._open = [*self._open[-199:], order]
        what = f"order {order[0]} accepted from {order[2]}: {1 + dice.below(9)} items to {dice.one_of(_CITIES)}"
        return self._said("INFO", "shop.OrderService", what)

    def _followed(self, event: int) -> str:
        order, payment, address = self._open[self._dice.below(len(self._open))]
        if event < 600:
            return self._said("INFO", "shop.Payments", f"payment {payment} for {order} authorised")
        if event < 800:
            return self._said("INFO", "shop.Warehouse", f"{order} picked, shelf {self._dice.below(400)}")
        if event < 970:
            return self._said("INFO", "http.Access", f"{address} GET /orders/{order} 200 {self._dice.below(90)} ms")
        return self._said("WARN", "shop.Payments", f"payment {payment} refused, {order} retried from {address}")

    def _trace(self) -> list[str]:
        order, payment, _ = self._open[-1] if self._open else ("ord-0", "pay-000000000000", "")
        return [
            self._said("ERROR", "shop.Payments", f"payment {payment} for {order} failed: gateway timed out"),
            "    at shop.payments.Gateway.call (gateway.py:88)",
            f"    at shop.payments.Retry.run (retry.py:31) attempt {1 + self._dice.below(3)} of 3",
        ]

    def _recent(self, count: int) -> list[str]:
        return [order for order, _, _ in self._open[-count:]]

    def _said(self, level: str, who: str, what: str) -> str:
        now = f"{self._now:%Y-%m-%d %H:%M:%S},{self._now.microsecond // 1000:03d}"
        return f"{now} {level} [{self._dice.one_of(_THREADS)}] {who}: {what}"


def sample_log(lines: int = DEFAULT_LINES, *, seed: int = 1, crlf: bool = True) -> Iterator[bytes]:
    """Yields the log in pieces, one a line, ``lines`` of them; the last has no line end."""
    shop, end = _Shop(seed), b"\r\n" if crlf else b"\n"
    written = 0
    while written < lines:
        for text in shop.line():
            if written < lines:
                # the last line is never an empty one, which would leave a line end behind the one before it
                yield (end if written else b"") + (text or "-" * (written == lines - 1)).encode()
                written += 1


def main() -> int:
    """Writes a sample to standard output."""
    parser = argparse.ArgumentParser(prog="python -m tierlog.service.sample", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--lines", type=int, default=DEFAULT_LINES, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--lf", action="store_true", help="end lines with LF alone")
    arguments = parser.parse_args()
    for piece in sample_log(arguments.lines, seed=arguments.seed, crlf=not arguments.lf):
        sys.stdout.buffer.write(piece)
    return 0


if __name__ == "__main__":
    sys.exit(main())
