"""Lists what lies in a store's part of the bucket and is named by nobody: orphans, leaks, uploads, foreign objects."""

from __future__ import annotations

from collections.abc import Iterable

from tiering.checks.findings import Findings
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.reading import ArchiveReader
from tiering.cold.sweep import NameSet, overdue_ms
from tiering.format.manifest import Head

_HOUR_MS = 3_600_000


def check_orphans(
    manifest: ManifestStore, reader: ArchiveReader, head: Head, named: Iterable[str], findings: Findings
) -> None:
    """Compare the bucket with ``named``, everything that ``head`` leads to.

    What is not overdue is a note at most: a commit may be on its way, or the sweep.
    """
    objects, keys, most_ms = manifest.objects, manifest.keys, overdue_ms(manifest.options.grace_ms)
    now_ms = objects.now_ms()
    removed = dict(manifest.removed_names(reader, head))
    known = NameSet(named)
    for prefix in keys.swept:
        for info in objects.list(prefix):
            if info.key in known:
                if info.key in removed:
                    findings.add(info.key, "is named, and on the list of removed names as well")
                continue
            is_removed = info.key in removed
            age_ms = now_ms - removed.get(info.key, info.modified_ms)
            age = f"{age_ms / _HOUR_MS:.1f} h"
            text = f"left the manifest {age} ago" if is_removed else f"is named by nobody, {age} old"
            if age_ms > most_ms:
                findings.add(info.key, text + ": the sweep should have taken it")
            elif not is_removed:
                findings.note(info.key, text)
        for pending in objects.list_uploads(prefix):
            age_ms = now_ms - pending.started_ms
            text = f"an upload of it has been pending for {age_ms / _HOUR_MS:.1f} h"
            if age_ms <= most_ms:
                findings.note(pending.key, text)
            else:
                findings.add(pending.key, text + ": the sweep should have aborted it")
    places = (*keys.swept, keys.tails, keys.receipts)
    for info in objects.list(f"{keys.store_id}/"):
        if info.key != keys.head and not info.key.startswith(places):
            findings.note(info.key, "is no object of tierlog")
