"""What an audit says of whole collections: totals, and how a tree compares with the public one."""

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

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
    facts = ("error", "is_labelled", *COUNTED, "n_apart", "ceiling")
    columns = {name: [getattr(row, name) for row in rows] for name in facts}
    columns["collection"] = [row.file.collection.name for row in rows]
    columns["split"] = [row.file.split for row in rows]
    table = pl.DataFrame(columns, schema_overrides={"error": pl.String, "ceiling": pl.Float64})
    return (
        table.group_by("collection", "split", maintain_order=True)
        .agg(
            pl.len().alias("n_files"),
            pl.col("error").count().alias("n_bad"),
            pl.col("is_labelled").sum().alias("n_labelled"),
            pl.col(COUNTED).sum(),
            pl.when(pl.col("is_labelled").any()).then(pl.col("n_apart").sum()).alias("n_apart"),
            pl.col("ceiling").median().alias("median_tau"),
        )
        .to_dicts()
    )


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
