"""The `fetch` command: the official dataset, from its authors' server or from Kaggle."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.console import Json, command, print_json, print_table

BASE_VARIABLE = "TPUGRAPHS_BASE_URL"
SOURCES = ("google", "kaggle")


@command
def fetch(
    source: Annotated[
        str,
        typer.Option(
            help="google (the authors' server, no account), or kaggle (its whole archive)."
        ),
    ] = "google",
    collections: Annotated[
        str | None,
        typer.Option(help="Such as tile:xla,layout:xla:default. Default: all."),
    ] = None,
    splits: Annotated[str | None, typer.Option(help="Such as valid,test. Default: all.")] = None,
    out: Annotated[
        Path, typer.Option(help="Data folder to write to; the same command goes on.")
    ] = Path("data/raw/tpugraphs"),
    json: Json = False,
) -> None:
    """Download the official dataset, check it and unpack it.

    The same command goes on where it broke off. Every collection has to hold as many graphs as were
    published. Kaggle wants an account that has accepted the competition's rules.

    Example: python -m pipeline fetch --collections layout:xla:default --out data/raw/tpugraphs
    """
    from common.errors import UsageError
    from common.locks import alone_in
    from data.fetch.fetch import BASE, FetchJob, fetch_google, fetch_kaggle
    from data.fetch.parts import parts_named

    if source not in SOURCES:
        raise UsageError(f"--source {source}: no such source; known: {', '.join(SOURCES)}")
    parts = parts_named(collections, splits)
    out.mkdir(parents=True, exist_ok=True)
    with alone_in(out):
        job = FetchJob(parts, out)
        if source == "kaggle":
            fetched = fetch_kaggle(job)
        else:
            fetched = fetch_google(job, base=os.environ.get(BASE_VARIABLE) or BASE)
    then = f"python -m pipeline audit --data {out}"
    rows = [(got.part.label, got.graphs, got.bytes, got.was_there) for got in fetched]
    if json:
        keys = ("part", "graphs", "bytes", "was_there")
        listed = [dict(zip(keys, row, strict=True)) for row in rows]
        print_json({"source": source, "out": str(out), "parts": listed, "next": then})
        return
    print_table(("part", "graphs", "bytes", "was there"), rows)
    typer.echo(f"next        {then}")
    typer.echo(f"data        {out}")
