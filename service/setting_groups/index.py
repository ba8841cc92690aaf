"""Settings of the key index."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from index.classic.format import check_capacity as check_classic_capacity
from index.header import DEFAULT_ITEMS, DEFAULT_SLOTS, check_capacity
from index.layout import TIERLOG
from service.setting_groups.group import SettingGroup
from tiering.errors import InvalidRequestError


class IndexSettings(SettingGroup):
    """Key index files. May change between starts: each file carries its own sizes."""

    slots: int = Field(
        default=DEFAULT_SLOTS,
        ge=1,
        description=(
            "Hash slots of a new index file, 8 bytes each on disk. Fewer make longer chains. At 8 bytes a slot and 32 "
            "an item, a file stays below 2 GiB."
        ),
    )
    items: int = Field(
        default=DEFAULT_ITEMS,
        ge=2,
        description=(
            "Items of a new index file, 36 bytes each on disk. Smaller files are published sooner and "
            "make more objects for a query to ask."
        ),
    )
    layout: Literal["tierlog"] = Field(
        default="tierlog", description="Item layout of new files. `tierlog` keeps 63 bits of hash per key."
    )
    seal_age_ms: int = Field(
        default=3_600_000,
        ge=1,
        description=(
            "ms. An index file whose first message is older is sealed and compacted though it is not full, with and "
            "without a cold tier, so that a quiet store's keys are published too. Each such file takes 8 bytes a slot "
            "on disk (40 MB by default) beside its items until its messages are removed, and becomes an object of its "
            "own: shorter makes more of both, and more objects for a query to ask."
        ),
    )

    classic: bool = Field(
        default=False,
        description=(
            "Whether RocketMQ's own key index is written too, below `index/`, so that a broker which opens the store "
            "finds its keys. Costs disk and about as much work per key as our own index. Switched on for an existing "
            "store, it is made for everything hot while the store opens. A broker that opens the store after a kill "
            "finds all keys only with `messageIndexSafe`, and `commitLogRecoverMaxNum` above the number of segments."
        ),
    )
    classic_slots: int = Field(
        default=5_000_000,
        ge=1,
        description=(
            "Hash slots of a classic index file, 4 bytes each. Must be the broker's `maxHashSlotNum`. Another value "
            "makes all classic files again."
        ),
    )
    classic_items: int = Field(
        default=DEFAULT_ITEMS,
        ge=2,
        description=(
            "Items of a classic index file, 20 bytes each. Must be the broker's `maxIndexNum`. The items of the "
            "unfinished file are linked again when the store opens, 20 million of them in about a second."
        ),
    )

    @model_validator(mode="after")
    def _fits_a_file(self) -> IndexSettings:
        try:
            check_capacity(TIERLOG, self.slots, self.items)
            check_classic_capacity(self.classic_slots, self.classic_items)
        except InvalidRequestError as error:
            raise ValueError(error.message) from error
        return self
