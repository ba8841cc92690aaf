"""Index files of ours in RocketMQ's form: the same bytes as if the puts had gone into a RocketMQ file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.index.index_puts import PUTS_A11, Put, T, batch_of
from tierlog.index.format.errors import CorruptIndexError
from tierlog.index.format.header import HEADER_BYTES
from tierlog.index.format.layout import ROCKETMQ, TIERLOG, ItemLayout
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.index.rocketmq.export import export_rocketmq
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.hashing import key_hash

MANY: list[Put] = [
    (f"topic{i % 3}", i % 3, i % 5, f"key{i * i % 97}", 91 * i, 91, T + 313 * i - 2_000) for i in range(700)
]


def sealed(path: Path, layout: ItemLayout, puts: list[Put], slots: int) -> ChainedIndexFile:
    file = ChainedIndexFile.create(
        LocalFileSystem(), path, layout, slots=slots, items=len(puts) + 1, begin_ms=T, first_physical=0
    )
    batch = batch_of(puts)
    file.put(batch, 0, len(batch))
    file.seal(1 << 20)
    return file


@pytest.mark.parametrize(("puts", "slots"), [(PUTS_A11, 4), (MANY, 1), (MANY, 50), (MANY, 5_000)])
def test_export_of_a_sealed_or_compacted_file_is_what_rocketmq_writes(
    tmp_path: Path, puts: list[Put], slots: int
) -> None:
    fs = LocalFileSystem()
    compact(fs, sealed(tmp_path / "r", ROCKETMQ, puts, slots), tmp_path / "wanted", tmp_path)
    source = sealed(tmp_path / "t", TIERLOG, puts, slots)
    compact(fs, source, tmp_path / "compacted", tmp_path)
    export_rocketmq(fs, source, tmp_path / "from-sealed", tmp_path)
    export_rocketmq(fs, CompactedIndexFile.open(fs, tmp_path / "compacted"), tmp_path / "from-compacted", tmp_path)
    wanted = (tmp_path / "wanted").read_bytes()
    assert (tmp_path / "from-sealed").read_bytes() == wanted
    assert (tmp_path / "from-compacted").read_bytes() == wanted
    opened = CompactedIndexFile.open_bare(fs, tmp_path / "from-compacted", ROCKETMQ, slots)
    topic, _, _, key, *_ = puts[0]
    offsets = [put[4] for put in puts if key_hash(put[0], put[3]) == key_hash(topic, key)]
    assert opened.lookup(key_hash(topic, key))["offset"].tolist() == offsets[::-1]


def test_file_being_written_is_not_exported(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    file = ChainedIndexFile.create(fs, tmp_path / "t", TIERLOG, slots=4, items=8, begin_ms=T, first_physical=0)
    file.put(batch_of(PUTS_A11), 0, 5)
    with pytest.raises(InvalidRequestError):
        export_rocketmq(fs, file, tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_damaged_source_is_not_exported(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    compact(fs, sealed(tmp_path / "t", TIERLOG, MANY, 50), tmp_path / "c", tmp_path)
    data = np.frombuffer((tmp_path / "c").read_bytes(), np.uint8)
    for at in (HEADER_BYTES + 8 * 7 + 3, HEADER_BYTES + 8 * 50 + 11):
        bad = data.copy()
        bad[at] ^= 1
        (tmp_path / "c").write_bytes(bad.tobytes())
        with pytest.raises(CorruptIndexError):
            export_rocketmq(fs, CompactedIndexFile.open(fs, tmp_path / "c", verify=False), tmp_path / "out", tmp_path)
        assert not (tmp_path / "out").exists()


def test_bare_file_whose_slots_do_not_abut_is_not_exported(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    compact(fs, sealed(tmp_path / "r", ROCKETMQ, MANY, 50), tmp_path / "c", tmp_path)
    bad = bytearray((tmp_path / "c").read_bytes())
    bad[HEADER_BYTES + 3] ^= 4
    (tmp_path / "c").write_bytes(bad)
    with pytest.raises(CorruptIndexError):
        export_rocketmq(fs, CompactedIndexFile.open_bare(fs, tmp_path / "c", ROCKETMQ, 50), tmp_path / "out", tmp_path)
