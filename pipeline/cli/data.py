"""The commands that make, check and pack data, and what they make of it: features, statistics."""

import os
from pathlib import Path
from typing import Annotated

import typer

from common.errors import UsageError
from pipeline.cli import options
from pipeline.cli.console import command, data_dir, print_json, print_rows, print_table, tell_errors

PUBLISHED = "published"
BASE_VARIABLE = "TPUGRAPHS_BASE_URL"
SOURCES = ("google", "kaggle")


@command
def synthesize(
    out: Annotated[Path, typer.Option(help="Folder for the tree.")],
    plan: Annotated[
        str | None, typer.Option(help="tiny, small (default), or published: the dataset's sizes.")
    ] = None,
    graph: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODES:CONFIGURABLE:CONFIGS",
            help="A train graph of layout:xla:random of this size, not a plan; may be repeated.",
        ),
    ] = None,
    collections: options.Collections = None,
    splits: options.Splits = None,
    share: Annotated[
        float, typer.Option(min=0, max=1, help="A share of each part, at least a graph.")
    ] = 1.0,
    workers: options.Workers = None,
    seed: options.Seed = None,
) -> None:
    """Write synthetic data of the official format.

    Runtimes come from a known cost model. A plan makes all five collections; --graph makes labelled
    layout graphs of any size, such as the largest real ones. The published plan (15 GB) can be
    made part by part, by --collections, --splits and --share; graphs that are there stay, so the
    same command goes on.

    Example: python -m pipeline synthesize --out data/raw/synthetic --seed 0
    """
    from common.jobs.workers import Workers
    from data.synthetic import write as writing
    from data.tree import collections_named, splits_named

    if graph and plan:
        raise UsageError("--plan and --graph: give one of them")
    plans = (*writing.PLANS, PUBLISHED)
    if plan not in (None, *plans):
        raise UsageError(f"--plan {plan}: no such plan; known: {', '.join(plans)}")
    if plan != PUBLISHED and (collections, splits, share, workers) != (None, None, 1.0, None):
        raise UsageError(
            f"--collections, --splits, --share and --workers: only --plan {PUBLISHED} has them"
        )
    seed, sized = seed or 0, [writing.sized_graph(writing.parse_size(size)) for size in graph or ()]
    if plan == PUBLISHED:
        named, parts = collections_named(collections), splits_named(splits)
        planned = writing.published_graphs(named, parts, share)
    else:
        planned = sized or list(writing.planned_graphs(writing.PLANS[plan or "small"], seed))
    writing.synthesize(out, planned, seed=seed, workers=Workers(workers))
    for one in sized:
        typer.echo(f"graph       {one.file(out).path}")
    typer.echo(f"data        {out}")


@command
def fetch(
    source: Annotated[
        str, typer.Option(help="google (the authors' server, no account), or kaggle (its archive).")
    ] = "google",
    collections: options.Collections = None,
    splits: options.Splits = None,
    out: Annotated[
        Path, typer.Option(help="Data folder to write to; the same command goes on.")
    ] = Path("data/raw/tpugraphs"),
    json: options.Json = False,
) -> None:
    """Download the official dataset, check it and unpack it.

    The same command goes on where it broke off. Every collection has to hold as many graphs as were
    published. Kaggle wants an account that has accepted the competition's rules.

    Example: python -m pipeline fetch --collections layout:xla:default --out data/raw/tpugraphs
    """
    from common.files import alone_in
    from data.fetch.fetch import BASE, FetchJob, fetch_google, fetch_kaggle
    from data.official.published import parts_named

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
    header = ("part", "graphs", "bytes", "was_there")
    rows = [(got.part.label, got.graphs, got.bytes, got.was_there) for got in fetched]
    if json:
        listed = [dict(zip(header, row, strict=True)) for row in rows]
        print_json({"source": source, "out": out, "parts": listed, "next": then})
        return
    print_table(header, rows)
    typer.echo(f"next        {then}\ndata        {out}")


@command
def audit(
    data: options.Data = None,
    json: options.Json = False,
    seed: options.Seed = None,
) -> None:
    """Check every data file; print counts, noise and anomalies.

    Counted are graphs, nodes, configs and repeated configs. Exits with 1 if a file is damaged.

    Example: python -m pipeline audit --data DIR
    """
    from data.audit import COLUMNS, as_dict, file_notes, leaks, totals
    from data.audit import audit as audit_files
    from data.manifest import read_manifest
    from data.tree import find_graphs, missing_parts, stray_folders

    folder = data_dir(data)
    files, measured = find_graphs(folder), read_manifest(folder)["graphs"]
    rows = audit_files(files, seed=seed or 0, measured=measured)
    missing, errors = missing_parts(files), [row.error for row in rows if row.error]
    notes = [*stray_folders(folder), *leaks(rows)]
    if json:
        facts = {
            "files": [as_dict(row) for row in rows],
            "parts": totals(rows),
            "missing_parts": missing,
            "notes": notes,
            "n_bad": len(errors),
        }
        print_json(facts)
    else:
        lines = [[line[key] for key in COLUMNS.values()] for line in totals(rows)]
        print_table(tuple(COLUMNS), lines)
        typer.echo(
            "ceiling: Kendall tau between two measurements of the same configs, in a file or by "
            "the\nmanifest; median over graphs"
        )
        if missing:
            present = list(dict.fromkeys(file.part for file in files))
            is_most = len(missing) > len(present)
            names = ", ".join(present if is_most else missing)
            typer.echo(f"missing: {'all but ' * is_most}{names}")
        for note in (*notes, *file_notes(rows)):
            typer.echo(f"note: {note}")
    tell_errors(errors)


@command
def prepare(
    data: options.Data = None,
    store: options.Store = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
) -> None:
    """Pack the files of a data folder into the store, each once.

    Other commands do so on their way. Exits with 1 if a file is damaged.

    Example: python -m pipeline prepare --data DIR
    """
    from common.jobs.workers import Workers
    from common.settings import default_store_dir
    from data.graph_store.prepare import prepare as prepare_files
    from data.tree import find_graphs

    folder, who = data_dir(data), Workers(workers, ray)
    who.check()
    target = store or default_store_dir(folder)
    prepared = prepare_files(find_graphs(folder), target, workers=who)
    n_new = sum(entry.is_new for entry in prepared)
    typer.echo(f"graphs      {len(prepared)}, of which {n_new} were packed now")
    typer.echo(f"store       {target}")
    tell_errors([entry.error for entry in prepared if entry.error])


@command
def featurize(
    files: Annotated[list[Path], typer.Argument(help="Tuning data or HLO modules (.pb).")],
    out: Annotated[Path, typer.Option(help="Folder for the npz files.")],
    json: options.Json = False,
) -> None:
    """Turn tuning protobufs or HLO modules into npz files.

    The files have the dataset's format.

    Example: python -m pipeline featurize module.hlo.pb --out data/raw/mine
    """
    from data.hlo.programs import featurize_files

    header = ("file", "kind", "nodes", "edges", "configs", "failed")
    print_rows(header, featurize_files(files, out), as_json=json)


@command
def statistics(
    out: Annotated[Path, typer.Option(help="Folder for the parquet files.")],
    data: options.Data = None,
    collections: options.Collections = None,
    splits: options.Splits = None,
) -> None:
    """Write statistics of all configs, a parquet file per graph.

    docs/reference/statistics.md has the formula of each.

    Example: python -m pipeline statistics --collections tile:xla --out runs/statistics
    """
    from data.tree import collections_named, find_graphs, splits_named
    from features.statistics.configs import write_statistics

    wanted, parts = collections_named(collections), splits_named(splits)
    files = find_graphs(data_dir(data), collections=wanted, splits=parts)
    write_statistics(files, out)
    typer.echo(f"statistics  {out} ({len(files)} graphs)")
