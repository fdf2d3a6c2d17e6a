"""Write names.txt.gz from lists of the dataset's files; needed again only if the dataset grows.

python -m data.official.write_names FOLDER, where FOLDER holds stats/layout_file_stats.csv (columns
collection, split, graph), stats/tile_train_names.txt, stats/tile_valid_names.txt, and the
competition's sample_submission.csv, which names the test split.
"""

import csv
import gzip
from pathlib import Path

import typer

from data.official.names import NAMES


def collect_names(folder: Path) -> dict[str, list[str]]:
    """Return the sorted names by "collection/split"."""
    found: dict[str, set[str]] = {}
    with (folder / "stats" / "layout_file_stats.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            found.setdefault(f"{row['collection']}/{row['split']}", set()).add(row["graph"])
    for split in ("train", "valid"):
        names = (folder / "stats" / f"tile_{split}_names.txt").read_text().split()
        found[f"tile:xla/{split}"] = set(names)
    with (folder / "sample_submission.csv").open() as stream:
        for line in list(stream)[1:]:
            collection, _, name = line.partition(",")[0].rpartition(":")
            found.setdefault(f"{collection}/test", set()).add(name)
    return {part: sorted(found[part]) for part in sorted(found)}


def write_names(folder: Path, out: Path = NAMES) -> None:
    """Write the lists of `folder` to `out`; the same lists give the same bytes."""
    lines: list[str] = []
    for part, names in collect_names(folder).items():
        lines += [f"{part}:", *names]
    text = "\n".join(lines) + "\n"
    out.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


if __name__ == "__main__":
    typer.run(write_names)
