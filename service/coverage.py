"""The coverage of several pages of one query as if they were one."""

from __future__ import annotations

from service.wire import Json


def merged_coverage(before: Json, page: Json) -> Json:
    """Numbers add up, intervals that touch grow together, complete only if every page is; ``before`` may be empty."""
    if not before:
        return page
    merged = dict(page)
    merged["complete"] = before["complete"] and page["complete"]
    # the limit of a page that another one followed has cut nothing off
    cuts = [cut for cut in (before["cut_by"], page["cut_by"]) if cut not in (None, "limit")]
    merged["cut_by"] = cuts[0] if cuts else page["cut_by"]
    for name in ("index_files", "segments"):
        merged[name] = {part: before[name][part] + value for part, value in page[name].items()}
    for name in ("round_trips", "waves", "requests", "manifest_requests", "bytes", "cost_usd"):
        if page.get(name) is not None and before.get(name) is not None:
            merged[name] = before[name] + page[name]
    merged["failures"] = _each_once(before["failures"], page["failures"])
    merged["stores"] = merged_stores(before["stores"], page["stores"])
    return merged


def _each_once(before: list[Json], page: list[Json]) -> list[Json]:
    """What cannot be read is told once, however many pages wanted it."""
    told = {failure["object"] for failure in before}
    return before + [failure for failure in page if failure["object"] not in told]


def merged_stores(before: list[Json], page: list[Json]) -> list[Json]:
    """What is claimed of each store."""
    stores = {store["store_id"]: dict(store) for store in before}
    for store in page:
        known = stores.setdefault(store["store_id"], dict(store))
        known["error"] = known["error"] or store["error"]
        for tier in ("hot", "cold"):
            old, new = known[tier], store[tier]
            if old and new and max(old["from_ms"], new["from_ms"]) <= min(old["to_ms"], new["to_ms"]):
                grown = {
                    "from_ms": min(old["from_ms"], new["from_ms"]),
                    "to_ms": max(old["to_ms"], new["to_ms"]),
                }
                known[tier] = {**new, **grown}
            else:
                known[tier] = old or new
    return list(stores.values())
