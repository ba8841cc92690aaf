"""Settings took sizes of an index file that opening the store refused, and told of 4 bytes a slot where it is 8."""

from __future__ import annotations

import pytest

from tierlog.index.format.header import MAX_FILE_BYTES, SLOT_BYTES, check_capacity, compacted_bytes
from tierlog.index.format.layout import TIERLOG
from tierlog.service.config.settings import IndexSettings, Settings
from tierlog.tiering.base.errors import InvalidRequestError

#: The most slots beside two items, and the most items beside one slot.
_MOST_SLOTS = (MAX_FILE_BYTES - compacted_bytes(TIERLOG, 0, 2)) // SLOT_BYTES
_MOST_ITEMS = (MAX_FILE_BYTES - compacted_bytes(TIERLOG, 1, 0)) // TIERLOG.compacted_bytes


@pytest.mark.parametrize(
    ("slots", "items"),
    [(_MOST_SLOTS, 2), (_MOST_SLOTS + 1, 2), (1, _MOST_ITEMS), (1, _MOST_ITEMS + 1), (200_000_000, 20_000_000)],
)
def test_settings_refuse_what_the_index_refuses(slots: int, items: int) -> None:
    given = {"index.slots": slots, "index.items": items}
    try:
        check_capacity(TIERLOG, slots, items)
    except InvalidRequestError as error:
        with pytest.raises(InvalidRequestError, match=rf"settings index: {error.message}"):
            Settings.load(None, given)
    else:
        assert Settings.load(None, given).index.slots == slots


def test_the_description_tells_the_size_of_a_slot() -> None:
    assert f"{SLOT_BYTES} bytes each on disk" in str(IndexSettings.model_fields["slots"].description)
