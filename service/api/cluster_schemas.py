"""The shapes of what is said of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from service.api.parameters import whole
from tiering.hot.identity import STORE_ID_PATTERN

StoreId = Annotated[str, WithJsonSchema({"type": "string", "pattern": whole(STORE_ID_PATTERN), "examples": ["a"]})]


class RouteIn(BaseModel):
    """Where new messages of a topic shall go."""

    model_config = ConfigDict(extra="forbid", strict=True)

    store_id: StoreId = Field(description="a store of the cluster")


class MemberOut(BaseModel):
    """One store of the cluster."""

    store_id: str
    url: str | None = Field(description="where its node answers; null for a service that is in no cluster")
    epoch: int | None = Field(
        ge=0, description="counts the owners of its archive; null: not entered in the table, or not yet"
    )
    volume_id: str | None = Field(description="the volume that has entered it")
    closed: bool = Field(description="gets no topics by hashing")
    is_own: bool = Field(description="is the store of the service that answers")


class RouteOut(BaseModel):
    """A topic that is routed by name."""

    topic: str
    store_id: str


class ClusterOut(BaseModel):
    """The cluster as one service knows it."""

    store_id: str | None = Field(description="the own store; null: the service has none")
    version: int = Field(ge=0, description="of the cluster table; 0: none was seen yet, or there is none")
    age_ms: int | None = Field(description="ms since it was known to be the newest; null: never")
    error: str | None = Field(
        description="why the table cannot be read or the own store not be entered; null: nothing is wrong"
    )
    stores: list[MemberOut]
    topics: list[RouteOut] = Field(description="routed by name, as far as the caller may see them")


class TopicHomeOut(BaseModel):
    """Where new messages of a topic go."""

    topic: str
    store_id: str
    url: str | None = Field(description="where its node answers; null: here, the service is in no cluster")
    is_routed: bool = Field(description="by name; else by hashing, which a change of the stores may change")
