"""Which zstd level, and how many record bytes in a frame?

Records are made of the eight real logs in TIERLOG_DATA (a topic and a queue each, a key and a tag as `tierlog load`
sets them), of 256 random bytes and of 256 letters of base64, and cut into frames as the archive does. Printed for each
level and frame size: ratio, MB of records a second of processor time in (compress) and out (decompress, checksum
verified), and the bytes that one point read gets: the mean compressed frame, by records. Then the same with a
dictionary trained on every other record of the logs, for the rest of them.

``TIERLOG_DATA=… python benchmarks/frames.py [--passes 5]``
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from tierlog.tiering.format.record import Record, RecordVersion, encode_host, encode_record

_LEVELS = (1, 3, 6)
_FRAMES = (16, 32, 64, 128, 256)
_HOST = encode_host(bytes([10, 0, 0, 1]), 9876)
_KEY = re.compile(rb"[A-Za-z_-]*\d{4,}")
_TAG = re.compile(rb"\b(?:INFO|WARN|ERROR|DEBUG|notice|error)\b")


def encoded(topic: str, bodies: Iterator[bytes] | list[bytes]) -> list[bytes]:
    records, offset = [], 0
    for number, body in enumerate(bodies):
        key, tag = _KEY.search(body), _TAG.search(body)
        texts = [b"KEYS\x01" + key[0] + b"\x02" if key else b"", b"TAGS\x01" + tag[0] + b"\x02" if tag else b""]
        record = Record(
            0, RecordVersion.V1, 0, 0, 0, number, offset, 0, 1_700_000_000_000 + number, _HOST,
            1_700_000_000_003 + number, _HOST, 0, 0, body, topic, b"".join(texts),
        )  # fmt: skip
        records.append(encode_record(record))
        offset += len(records[-1])
    return records


def samples() -> dict[str, list[list[bytes]]]:
    """Records of each queue of each kind of data."""
    chance = random.Random(1)
    logs = sorted(Path(os.environ["TIERLOG_DATA"], "loghub").glob("*.log"))
    made_up = range(16_000)
    return {
        "eight real logs": [
            encoded(path.stem, [line for line in path.read_bytes().splitlines() if line]) for path in logs
        ],
        "256 random bytes": [encoded("random", [chance.randbytes(256) for _ in made_up])],
        "256 letters of base64": [encoded("base64", [base64.b64encode(chance.randbytes(192)) for _ in made_up])],
    }


def frames_of(queues: list[list[bytes]], frame_bytes: int) -> list[tuple[bytes, int]]:
    """(records joined, how many) of each frame."""
    frames = []
    for records in queues:
        held: list[bytes] = []
        size = 0
        for record in records:
            if held and size + len(record) > frame_bytes:
                frames.append((b"".join(held), len(held)))
                held, size = [], 0
            held.append(record)
            size += len(record)
        frames.append((b"".join(held), len(held)))
    return frames


@dataclass
class Measured:
    ratio: float
    in_mb_s: float
    out_mb_s: float
    get_bytes: float


def measure(
    frames: list[tuple[bytes, int]], level: int, passes: int, dictionary: zstandard.ZstdCompressionDict | None = None
) -> Measured:
    compressor = zstandard.ZstdCompressor(
        level=level, dict_data=dictionary, write_checksum=True, write_content_size=True
    )
    decompressor = zstandard.ZstdDecompressor(dict_data=dictionary)
    raw = sum(len(data) for data, _ in frames)
    best_in = best_out = float("inf")
    packed: list[bytes] = []
    for _ in range(passes):
        began = time.process_time()
        packed = [compressor.compress(data) for data, _ in frames]
        best_in = min(best_in, time.process_time() - began)
        began = time.process_time()
        for piece in packed:
            decompressor.decompress(piece)
        best_out = min(best_out, time.process_time() - began)
    got = sum(len(piece) * count for piece, (_, count) in zip(packed, frames, strict=True))
    return Measured(
        raw / sum(map(len, packed)), raw / best_in / 1e6, raw / best_out / 1e6, got / sum(count for _, count in frames)
    )


def line(name: str, found: list[Measured]) -> str:
    cells = [
        f"{each.ratio:.2f} \\| {each.in_mb_s:.0f} \\| {each.out_mb_s:.0f} \\| {each.get_bytes:,.0f}" for each in found
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--passes", type=int, default=5)
    passes = parser.parse_args().passes
    found = samples()
    head = "| frame | " + " | ".join(f"level {level}" for level in _LEVELS) + " |\n|---|" + "---|" * len(_LEVELS)
    for name, queues in found.items():
        print(f"\n**{name}**: ratio \\| MB/s in \\| MB/s out \\| bytes of a point read\n\n{head}")
        for size in _FRAMES:
            frames = frames_of(queues, size << 10)
            print(line(f"{size} KiB", [measure(frames, level, passes) for level in _LEVELS]), flush=True)
    queues = found["eight real logs"]
    dictionary = zstandard.train_dictionary(112_640, [each for records in queues for each in records[::2]], level=3)
    rest = [records[1::2] for records in queues]
    print(f"\n**every other record of the logs, level {_LEVELS[0]}**\n\n| frame | plain | dictionary |\n|---|---|---|")
    for size in _FRAMES[:3]:
        frames = frames_of(rest, size << 10)
        print(
            line(f"{size} KiB", [measure(frames, _LEVELS[0], passes, each) for each in (None, dictionary)]), flush=True
        )


if __name__ == "__main__":
    main()
