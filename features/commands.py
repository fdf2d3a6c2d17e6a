"""The `featurize` command."""

from pathlib import Path
from typing import Annotated

import typer

from console import (
    Debug,
    Json,
    Seed,
    command,
    print_json,
    print_table,
    progress_bar,
)


@command
def featurize(
    files: Annotated[list[Path], typer.Argument(help="Tuning data or HLO modules (.pb).")],
    out: Annotated[Path, typer.Option(help="Folder for the npz files.")],
    padding: Annotated[
        str, typer.Option(help="Of layouts beyond a tensor's rank: zero or minus-one.")
    ] = "zero",
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Turn tuning protobufs or HLO modules into npz files of the dataset's format.

    Example: python -m pipeline featurize module.hlo.pb --out data/raw/mine
    """
    from features.featurize import featurize_files

    with progress_bar() as progress:
        written = featurize_files(files, out, padding=padding, progress=progress)
    header = ("file", "kind", "nodes", "edges", "configs", "failed")
    rows = [(str(g.path), g.kind, g.n_nodes, g.n_edges, g.n_configs, g.n_failed) for g in written]
    if json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        print_table(header, rows)
