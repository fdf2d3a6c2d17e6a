"""The commands that make, check and pack data, and what they make of it: features, statistics."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from common.errors import UsageError
from pipeline.cli import options
from pipeline.cli.console import (
    check_output,
    command,
    data_dir,
    print_json,
    print_rows,
    print_table,
    say,
    show,
    tell_errors,
)

if TYPE_CHECKING:
    from data.audit import AuditRow

PUBLISHED = "published"
BASE_VARIABLE = "TPUGRAPHS_BASE_URL"


@command
def synthesize(
    out: Annotated[Path, typer.Option(help="Folder for the data tree.")],
    plan: Annotated[
        Literal["tiny", "small", "published"] | None,
        typer.Option(help="Plan. published has the sizes of the dataset. Default: small."),
    ] = None,
    graph: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODES:CONFIGURABLE:CONFIGS",
            help="Write a train graph of this size for layout:xla:random, instead of a plan. "
            "Repeatable.",
        ),
    ] = None,
    collections: options.Collections = None,
    splits: options.Splits = None,
    share: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the graphs of each split, at least one graph."),
    ] = 1.0,
    max_configs: Annotated[
        int | None,
        typer.Option(min=20, help="Largest number of configs of a train or valid graph."),
    ] = None,
    workers: options.Workers = None,
    seed: options.Seed = None,
) -> None:
    """Write synthetic data in the format of the dataset.

    The runtimes come from a cost model. --graph writes layout graphs of a given size. The published
    plan needs 15 GB. Existing graphs stay, so the same command resumes.

    Example: fast-or-slow synthesize --out data/raw/synthetic --seed 0
    """
    from common.jobs.workers import Workers
    from data.synthetic import write as writing
    from data.tree import collections_named, splits_named

    if graph and plan:
        raise UsageError("--plan and --graph: give one of them")
    values = (collections, splits, max_configs, workers)
    if plan != PUBLISHED and (share != 1.0 or any(value is not None for value in values)):
        raise UsageError(
            "--collections, --splits, --share, --max-configs and --workers: only --plan "
            f"{PUBLISHED} has them"
        )
    seed, sized = seed or 0, [writing.sized_graph(writing.parse_size(size)) for size in graph or ()]
    if plan == PUBLISHED:
        places, parts = collections_named(collections), splits_named(splits)
        limit = max_configs or writing.MAX_CONFIGS
        graphs = writing.published_graphs(places, parts, share, limit)
    else:
        graphs = sized or list(writing.planned_graphs(writing.PLANS[plan or "small"], seed))
    writing.synthesize(out, graphs, seed=seed, workers=Workers(workers))
    for new in sized:
        show(f"graph       {new.file(out).path}")
    show(f"data        {out}")


@command
def fetch(
    source: Annotated[
        Literal["google", "kaggle"], typer.Option(help="Source. google needs no account.")
    ] = "google",
    collections: options.Collections = None,
    splits: options.Splits = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Data folder. The same command resumes. Default: PIPELINE_DATA, "
            "data/raw/tpugraphs of the checkout, or the user's cache folder."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Download, check and unpack the dataset.

    The same command resumes. The source kaggle needs an account that has accepted the rules of the
    competition.

    Example: fast-or-slow fetch --collections layout:xla:default --out data/raw/tpugraphs
    """
    from common.files import alone_in
    from common.settings import download_dir
    from data.fetch.fetch import BASE, FetchJob, fetch_google, fetch_kaggle
    from data.official.published import parts_named

    parts = parts_named(collections, splits)
    out = out or download_dir()
    out.mkdir(parents=True, exist_ok=True)
    with alone_in(out):
        job = FetchJob(parts, out)
        if source == "kaggle":
            results = fetch_kaggle(job)
        else:
            results = fetch_google(job, base=os.environ.get(BASE_VARIABLE) or BASE)
    then = f"fast-or-slow audit --data {out}"
    header = ("part", "graphs", "bytes", "was_there")
    rows = [(result.part, result.graphs, result.bytes, result.was_there) for result in results]
    if json:
        table = [dict(zip(header, row, strict=True)) for row in rows]
        print_json({"source": source, "out": out, "parts": table, "next": then})
        return
    print_table(header, rows)
    show(f"next        {then}", f"data        {out}")


@command
def audit(
    data: options.Data = None,
    report: Annotated[
        Path | None, typer.Option(help="Page to write, with charts of all graphs by collection.")
    ] = None,
    json: options.Json = False,
    seed: options.Seed = None,
) -> None:
    """Check every data file, and print counts, noise and anomalies.

    The exit code is 1 if a file is damaged.

    Example: fast-or-slow audit --data DIR --report runs/audit.html
    """
    check_output("--report", report, ".html")
    folder = data_dir(data)
    from data.audit import as_dict, leaks, totals
    from data.audit import audit as audit_files
    from data.audit_page import write_audit_page
    from data.manifest import read_manifest
    from data.tree import find_graphs, missing_parts, stray_folders

    files, measurements = find_graphs(folder), read_manifest(folder)["graphs"]
    rows = audit_files(files, seed=seed or 0, measured=measurements)
    missing, errors = missing_parts(files), [row.error for row in rows if row.error]
    notes = [*stray_folders(folder), *leaks(rows)]
    if report:
        write_audit_page(report, rows, f"Audit of {folder}")
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
        _print_audit(rows, missing, notes)
    if report:
        say(f"page        {report}")
    tell_errors(errors)


def _print_audit(rows: "Sequence[AuditRow]", missing: Sequence[str], notes: Sequence[str]) -> None:
    from data.audit import COLUMNS, file_notes, totals

    print_table(tuple(COLUMNS), [[line[key] for key in COLUMNS.values()] for line in totals(rows)])
    show(
        "ceiling: Kendall tau between two measurements of the same configs, in a file or by the",
        "manifest; median over graphs",
    )
    if missing:
        present = list(dict.fromkeys(row.file.part for row in rows))
        is_most = len(missing) > len(present)
        names = ", ".join(present if is_most else missing)
        show(f"missing: {'all but ' * is_most}{names}")
    for note in (*notes, *file_notes(rows)):
        show(f"note: {note}")


@command
def prepare(
    data: options.Data = None,
    store: options.Store = None,
    workers: options.Workers = None,
    ray: options.Ray = None,
) -> None:
    """Pack the files of a data folder into the store.

    Other commands do this on demand. The exit code is 1 if a file is damaged.

    Example: fast-or-slow prepare --data DIR
    """
    from common.jobs.workers import Workers
    from common.settings import default_store_dir
    from data.graph_store.prepare import prepare as prepare_files
    from data.tree import find_graphs

    folder, pool = data_dir(data), Workers(workers, ray)
    pool.check()
    target = store or default_store_dir(folder)
    entries = prepare_files(find_graphs(folder), target, workers=pool)
    n_new = sum(entry.is_new for entry in entries)
    show(f"graphs      {len(entries)}, of which {n_new} were packed now")
    show(f"store       {target}")
    tell_errors([entry.error for entry in entries if entry.error])


@command
def featurize(
    files: Annotated[
        list[Path], typer.Argument(help="Tuning data, HLO, StableHLO, jax.export, or FILE#MODULE.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the npz files.")],
    batch: options.Batch = None,
    json: options.Json = False,
) -> None:
    """Convert tuning data and modules of compilers to npz files.

    The files have the format of the dataset. The content decides the format of a file. FILE#MODULE
    is one module of a file or of a folder that XLA dumped.

    Example: fast-or-slow featurize module.hlo.pb --out data/raw/mine
    """
    from data.hlo.programs import featurize_files

    header = ("file", "kind", "nodes", "edges", "configs", "failed")
    print_rows(header, featurize_files(files, out, batch), as_json=json)


@command
def statistics(
    out: Annotated[Path, typer.Option(help="Folder for the parquet files.")],
    data: options.Data = None,
    collections: options.Collections = None,
    splits: options.Splits = None,
) -> None:
    """Write the statistics of all configs, one parquet file per graph.

    docs/reference/statistics.md has the formula of each statistic.

    Example: fast-or-slow statistics --collections tile:xla --out runs/statistics
    """
    from data.tree import collections_named, find_graphs, splits_named
    from features.statistics.configs import write_statistics

    places, parts = collections_named(collections), splits_named(splits)
    files = find_graphs(data_dir(data), collections=places, splits=parts)
    write_statistics(files, out)
    show(f"statistics  {out} ({len(files)} graphs)")
