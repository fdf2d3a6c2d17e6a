"""What an audit says of whole collections: totals, and how a tree compares with the public one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from data.audit.rows import COUNTED, AuditRow
from data.fetch.parts import PUBLISHED_GRAPHS
from data.official.published import official_names

PUBLISHED = {part.label: n_graphs for part, n_graphs in PUBLISHED_GRAPHS.items()}
MAX_NOTES = 10  # on single files, for each split of a collection
MAX_NAMES = 3

HEADER = (
    *("collection", "split", "files", "bad", "labels", "nodes", "edges", "configs", "distinct"),
    *("apart", "ceiling"),
)
COLUMNS = (
    *("collection", "split", "n_files", "n_bad", "n_labelled", "n_nodes", "n_edges", "n_configs"),
    *("n_distinct", "n_apart", "median_tau"),
)


@dataclass(frozen=True)
class Comparison:
    """The names of one split of a collection, beside the published ones."""

    part: str  # "collection/split"
    n_official: int  # graphs in the public dataset
    n_present: int  # files here with a name of it
    foreign: tuple[str, ...]  # other names here


def by_part(rows: Sequence[AuditRow]) -> dict[str, list[AuditRow]]:
    """Sort rows by "collection/split", in the order given."""
    parts: dict[str, list[AuditRow]] = {}
    for row in rows:
        parts.setdefault(f"{row.file.collection.name}/{row.file.split}", []).append(row)
    return parts


def totals(rows: Sequence[AuditRow]) -> list[dict[str, object]]:
    """Add up files by collection and split.

    `n_apart` are configs whose runtimes disagree by more than the bound, None where all runtimes
    are withheld. `median_tau` is that over the graphs where two measurements can be compared, None
    without any.
    """
    return [_total(part, found) for part, found in by_part(rows).items()]


def _total(part: str, rows: Sequence[AuditRow]) -> dict[str, object]:
    collection, split = part.split("/")
    good = [row for row in rows if row.error is None]
    labelled = [row.is_labelled for row in good]
    taus = [row.ceiling for row in good if row.ceiling is not None]
    return {
        "collection": collection,
        "split": split,
        "n_files": len(rows),
        "n_bad": len(rows) - len(good),
        "n_labelled": sum(labelled),
        **{key: sum(getattr(row, key) for row in good) for key in COUNTED},
        "n_apart": sum(row.n_apart for row in good) if any(labelled) else None,
        "median_tau": median(taus) if taus else None,
    }


def table(rows: Sequence[AuditRow]) -> list[list[object]]:
    """Return the lines below HEADER, one for each split of a collection."""
    return [[line[key] for key in COLUMNS] for line in totals(rows)]


def compare_names(rows: Sequence[AuditRow]) -> list[Comparison]:
    """Compare the names of each split that is there with the published ones."""
    compared = []
    for part, graphs in by_part(rows).items():
        names, official = {row.file.name for row in graphs}, official_names()[part]
        foreign = tuple(sorted(names - official))
        compared.append(Comparison(part, PUBLISHED[part], len(names & official), foreign))
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
        apart = [row for row in found if row.n_apart]
        if apart:
            worst = max(apart, key=lambda row: row.worst_disagreement or 0.0)
            yield (
                f"{part}: runtimes of {sum(row.n_apart for row in apart)} of "
                f"{sum(row.n_repeated for row in found)} repeated configs disagree, in "
                f"{len(apart)} of {len(found)} files; the worst by "
                f"{100 * (worst.worst_disagreement or 0.0):.3g} % in {worst.file.name}"
            )


def _name_notes(rows: Sequence[AuditRow]) -> Iterator[str]:
    compared = compare_names(rows)
    if not any(part.n_present for part in compared):
        yield "none of the names is official: not the public dataset"
        return
    for part in compared:
        if part.n_present < part.n_official:
            yield f"{part.part}: {part.n_present} of {part.n_official} official graphs present"
        if part.foreign:
            yield f"{part.part}: not official: {_some(part.foreign)}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
