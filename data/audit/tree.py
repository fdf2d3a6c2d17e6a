"""What an audit says of whole collections: totals, and how a tree compares with the public one."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from data.audit.rows import COUNTED, AuditRow
from data.fetch.parts import PUBLISHED_GRAPHS
from data.official.published import official_names

MAX_NOTES = 10  # on single files, for each split of a collection
MAX_NAMES = 3
COLUMNS = {  # of the table, each with its key among the totals
    "collection": "collection",
    "split": "split",
    "files": "n_files",
    "bad": "n_bad",
    "labels": "n_labelled",
    "nodes": "n_nodes",
    "edges": "n_edges",
    "configs": "n_configs",
    "distinct": "n_distinct",
    "apart": "n_apart",
    "ceiling": "median_tau",
}


def by_part(rows: Sequence[AuditRow]) -> dict[str, list[AuditRow]]:
    """Sort rows by "collection/split", in the order given."""
    parts: dict[str, list[AuditRow]] = {}
    for row in rows:
        parts.setdefault(row.file.part, []).append(row)
    return parts


def totals(rows: Sequence[AuditRow]) -> list[dict[str, Any]]:
    """Add up files by collection and split.

    `n_apart` are configs whose runtimes disagree by more than the bound, None where all runtimes
    are withheld. `median_tau` is that over the graphs where two measurements can be compared, None
    without any.
    """
    return [_total(part, found) for part, found in by_part(rows).items()]


def _total(part: str, rows: Sequence[AuditRow]) -> dict[str, Any]:
    collection, split = part.split("/")
    good = [row for row in rows if row.error is None]
    n_labelled = sum(row.is_labelled for row in good)
    taus = [row.ceiling for row in good if row.ceiling is not None]
    return {
        "collection": collection,
        "split": split,
        "n_files": len(rows),
        "n_bad": len(rows) - len(good),
        "n_labelled": n_labelled,
        **{key: sum(getattr(row, key) for row in good) for key in COUNTED},
        "n_apart": sum(row.n_apart for row in good) if n_labelled else None,
        "median_tau": median(taus) if taus else None,
    }


def compare_names(rows: Sequence[AuditRow]) -> list[dict[str, Any]]:
    """Compare the names of each split that is there with the published ones.

    Returns:
        By split its "part" ("collection/split"), "n_official" graphs in the public dataset,
        "n_present" files here with a name of it, and the "foreign" other names here.
    """
    published = {part.label: n_graphs for part, n_graphs in PUBLISHED_GRAPHS.items()}
    compared = []
    for part, graphs in by_part(rows).items():
        names, official = {row.file.name for row in graphs}, official_names()[part]
        compared.append(
            {
                "part": part,
                "n_official": published[part],
                "n_present": len(names & official),
                "foreign": sorted(names - official),
            }
        )
    return compared


def tree_notes(rows: Sequence[AuditRow]) -> list[str]:
    """Say what concerns more than one file, or how a file stands to the public dataset."""
    return [*_disagreements(rows), *_name_notes(rows)]


def file_notes(rows: Sequence[AuditRow]) -> list[str]:
    """List the notes on single files, up to ten for each split of a collection."""
    lines = []
    for part, found in by_part(rows).items():
        notes = [f"{row.file.submission_id}: {note}" for row in found for note in row.notes]
        lines += notes[:MAX_NOTES]
        if len(notes) > MAX_NOTES:
            lines.append(f"{part}: {len(notes) - MAX_NOTES} more such notes; --json has all")
    return lines


def _disagreements(rows: Sequence[AuditRow]) -> Iterator[str]:
    for part, found in by_part(rows).items():
        apart = [(row.worst_disagreement or 0.0, row.file.name) for row in found if row.n_apart]
        if apart:
            worst, name = max(apart)
            yield (
                f"{part}: runtimes of {sum(row.n_apart for row in found)} of "
                f"{sum(row.n_repeated for row in found)} repeated configs disagree, in "
                f"{len(apart)} of {len(found)} files; the worst by {100 * worst:.3g} % in {name}"
            )


def _name_notes(rows: Sequence[AuditRow]) -> Iterator[str]:
    compared = compare_names(rows)
    if not any(part["n_present"] for part in compared):
        yield "none of the names is official: not the public dataset"
        return
    for part in compared:
        if part["n_present"] < part["n_official"]:
            told = f"{part['n_present']} of {part['n_official']} official graphs present"
            yield f"{part['part']}: {told}"
        if foreign := part["foreign"]:
            more = f" and {len(foreign) - MAX_NAMES} more" if len(foreign) > MAX_NAMES else ""
            yield f"{part['part']}: not official: {', '.join(foreign[:MAX_NAMES])}{more}"
