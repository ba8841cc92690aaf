"""What only lost disks hold is on the newest volume once after salvage, in random histories by seed."""

from __future__ import annotations

import pytest

from tests.support.stores.salvaged_history import LAST, SalvagedHistory

_SEEDS = 12
#: Seeds of each kind in `make test`.
_QUICK = 1


@pytest.mark.parametrize("seeds", [range(_QUICK), pytest.param(range(_QUICK, _SEEDS), marks=pytest.mark.slow)])
@pytest.mark.parametrize("last", LAST)
def test_every_acknowledged_message_of_lost_disks_is_there_once_whatever_their_last_segment(
    last: str, seeds: range
) -> None:
    for seed in seeds:
        history = SalvagedHistory(seed * 100 + list(LAST).index(last))
        try:
            history.run(last)
        except BaseException as error:
            error.add_note(f"seed {seed}, steps {history.steps}")
            raise
