"""The part of ``helm/tierlog/values.schema.json`` that is about settings, out of :class:`service.settings.Settings`.

The rest of that file is written by hand. What the chart itself says (where pods listen, the files of secrets, the
bucket's endpoint, addresses) is left out, so that a value that would be overruled is refused instead.
"""

from __future__ import annotations

from typing import Any

from service.settings import Settings

#: Settings that the chart makes of other values, or that would be wrong for all pods alike.
CHARTS_OWN = frozenset(
    {
        "advertise",
        "access.tokens",
        "access.tokens_file",
        "cluster.address",
        "cold.cache_dir",
        "cold.s3_endpoint",
        "serve.host",
        "serve.port",
        "serve.tls_certificate",
        "serve.tls_client_ca",
        "serve.tls_key",
    }
)

Schema = dict[str, Any]


def settings_schema() -> Schema:
    """What ``settings``, ``stores.settings`` and ``queriers.settings`` may hold; every setting may be left out."""
    whole = Settings.model_json_schema()
    return _without_refs(whole, whole.get("$defs", {}), "")


def _without_refs(node: Schema, defs: Schema, name: str) -> Schema:
    """The same schema with its groups in place, no titles, and none of the chart's own settings."""
    if "$ref" in node:
        node = {**defs[node["$ref"].rpartition("/")[2]], **{key: node[key] for key in node if key != "$ref"}}
    if "properties" not in node:
        return {key: value for key, value in node.items() if key != "title"}
    prefix = f"{name}." if name else ""
    return {
        "type": "object",
        "description": str(node.get("description", "")).split("\n")[0],
        "additionalProperties": False,
        "properties": {
            field: _without_refs(value, defs, prefix + field)
            for field, value in node["properties"].items()
            if prefix + field not in CHARTS_OWN
        },
    }
