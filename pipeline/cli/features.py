"""The commands that make features: featurize, statistics."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.console import DataDir, Json, command, data_dir, print_json, print_table


@command
def featurize(
    files: Annotated[list[Path], typer.Argument(help="Tuning data or HLO modules (.pb).")],
    out: Annotated[Path, typer.Option(help="Folder for the npz files.")],
    padding: Annotated[
        str, typer.Option(help="Of layouts beyond a tensor's rank: zero or minus-one.")
    ] = "zero",
    json: Json = False,
) -> None:
    """Turn tuning protobufs or HLO modules into npz files.

    The files have the dataset's format.

    Example: python -m pipeline featurize module.hlo.pb --out data/raw/mine
    """
    from data.hlo.write import featurize_files

    written = featurize_files(files, out, padding=padding)
    header = ("file", "kind", "nodes", "edges", "configs", "failed")
    rows = [(str(graph.path), *graph[1:]) for graph in written]
    if json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        print_table(header, rows)


@command
def statistics(
    out: Annotated[Path, typer.Option(help="Folder for the parquet files.")],
    data: DataDir = None,
    collections: Annotated[
        str | None, typer.Option(help="Such as tile:xla,layout:xla:default. Default: all.")
    ] = None,
    splits: Annotated[str | None, typer.Option(help="Such as valid,test. Default: all.")] = None,
) -> None:
    """Write statistics of all configs, a parquet file per graph.

    features/statistics/STATISTICS.md says what each is.

    Example: python -m pipeline statistics --collections tile:xla --out runs/statistics
    """
    from data.tree import COLLECTIONS, SPLITS, collection_named, find_graphs
    from features.statistics.configs import write_statistics

    wanted = [collection_named(name) for name in collections.split(",")] if collections else None
    files = find_graphs(
        data_dir(data),
        collections=wanted or COLLECTIONS,
        splits=splits.split(",") if splits else SPLITS,
    )
    write_statistics(files, out)
    typer.echo(f"statistics  {out} ({len(files)} graphs)")
