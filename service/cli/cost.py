"""What a query cost, or may cost, as text for a terminal."""

from __future__ import annotations

from service.wire import Json


def cost_line(coverage: Json) -> str:
    """Cost and depth of an answer."""
    files = coverage["index_files"]
    asked = f"{coverage['requests']:,} requests, {coverage['manifest_requests']:,} of them for the manifest"
    paid = f"{coverage['bytes']:,} bytes, {coverage['cost_usd']:.7f} USD, {coverage['round_trips']} round trips"
    parts = [f"{count:,} {what}" for what, count in files.items() if count or what == "considered"]
    return f"{asked}; {paid}; index files: {', '.join(parts)}"


def estimate_lines(estimate: Json, coverage: Json) -> str:
    """What a dry run found."""
    requests, objects, files = estimate["requests"], estimate["index_objects"], coverage["index_files"]
    usd = estimate["cost_usd"]
    lines = [
        f"requests  {requests['likely']:,} likely, {requests['least']:,} at least, {requests['most']:,} at most",
        f"likely    {estimate['bytes']:,} bytes, {estimate['round_trips']} round trips, {usd['likely']:.7f} USD",
        f"index     {files['considered']:,} files, {files['filtered']:,} ruled out, {objects['asked']:,} to ask",
        f"in memory {objects['filters_resident']:,} filters, {objects['directories_resident']:,} directories of those",
        f"by time   {estimate['segments']['by_time']:,} segments to search record by record",
        f"dry run   {coverage['requests']:,} requests",
    ]
    return "\n".join(lines + [f"note      {note}" for note in estimate["notes"]])
