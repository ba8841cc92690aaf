"""The base class of the groups of settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SettingGroup(BaseModel):
    """Immutable, and every name in it is known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
