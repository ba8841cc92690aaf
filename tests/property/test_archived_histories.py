"""What was acknowledged as archived survives the loss of the volume, in random histories by seed."""

from __future__ import annotations

import pytest

from tests.support.stores.archived_history import ArchivedHistory

_GROUPS = 20
_SEEDS = 5
#: Groups of them in `make test`.
_QUICK = 3


@pytest.mark.parametrize(
    "group", [*range(_QUICK), *(pytest.param(group, marks=pytest.mark.slow) for group in range(_QUICK, _GROUPS))]
)
def test_every_message_acknowledged_as_archived_is_there_once_after_the_volume_is_lost(group: int) -> None:
    for seed in range(group * _SEEDS, (group + 1) * _SEEDS):
        history = ArchivedHistory(seed)
        try:
            history.run(25)
        except BaseException as error:
            error.add_note(f"seed {seed}, steps {history.steps}")
            raise
