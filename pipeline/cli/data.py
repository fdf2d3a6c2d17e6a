"""The commands that make and check data: synthesize, audit."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.console import (
    DataDir,
    Json,
    Seed,
    WorkerCount,
    command,
    data_dir,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from data.audit.rows import AuditRow

PUBLISHED = "published"

Graphs = Annotated[
    list[str] | None,
    typer.Option(
        "--graph",
        metavar="NODES:CONFIGURABLE:CONFIGS",
        help="A train graph of layout:xla:random of this size, not a plan; may be repeated.",
    ),
]


@command
def synthesize(
    out: Annotated[Path, typer.Option(help="Folder for the tree.")],
    plan: Annotated[
        str | None,
        typer.Option(
            help="tiny (tests), small (examples), or published: every graph of the public dataset "
            "by name and size. Default: small."
        ),
    ] = None,
    graph: Graphs = None,
    collections: Annotated[
        str | None, typer.Option(help="Of the published plan: such as tile:xla,layout:xla:default.")
    ] = None,
    splits: Annotated[
        str | None, typer.Option(help="Of the published plan: such as valid,test.")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0, max=1, help="Of the published plan: a share of each part.")
    ] = 1.0,
    workers: WorkerCount = None,
    json: Json = False,
    seed: Seed = None,
) -> None:
    """Write synthetic data of the official format.

    Runtimes come from a known cost model. A plan makes all five collections; --graph makes labelled
    layout graphs of any size, such as the largest real ones. The published plan (15 GB) can be
    made part by part; graphs that are there stay, so the same command goes on.

    Example: python -m pipeline synthesize --out data/raw/synthetic --seed 0
    """
    from common.errors import UsageError
    from data import synthetic
    from data.tree import COLLECTIONS, SPLITS, collection_named
    from pipeline.jobs.files import make
    from pipeline.jobs.workers import Workers

    if graph and plan:
        raise UsageError("--plan and --graph: give one of them")
    plans = (*synthetic.PLANS, PUBLISHED)
    if plan not in (None, *plans):
        raise UsageError(f"--plan {plan}: no such plan; known: {', '.join(plans)}")
    if plan != PUBLISHED and (collections, splits, share, workers) != (None, None, 1.0, None):
        raise UsageError(
            f"--collections, --splits, --share and --workers: only --plan {PUBLISHED} has them"
        )
    planned: list[synthetic.PlannedGraph] = []
    if graph:
        place, sizes = collection_named("layout:xla:random"), map(synthetic.parse_size, graph)
        planned = [synthetic.PlannedGraph(place, "train", size.name, size) for size in sizes]
        synthetic.synthesize_graphs(out, planned, seed=seed or 0)
    elif plan == PUBLISHED:
        named = [collection_named(name.strip()) for name in (collections or "").split(",") if name]
        parts = [split.strip() for split in (splits or "").split(",") if split]
        planned = synthetic.published_graphs(named or COLLECTIONS, parts or SPLITS, share)
        left = synthetic.missing_graphs(out, planned, seed=seed or 0)
        make(left, out, seed or 0, Workers(workers))
    else:
        synthetic.synthesize(out, seed=seed or 0, plan=synthetic.PLANS[plan or "small"])
    files = [one.file(out).path for one in planned]
    if json:
        print_json({"out": str(out), "graphs": list(map(str, files))})
        return
    typer.echo(f"data        {out}")
    for file in files if graph else ():
        typer.echo(f"graph       {file}")


@command
def audit(
    data: DataDir = None,
    max_disagreement: Annotated[
        float,
        typer.Option(
            min=0, help="How far runtimes of one config may lie apart, as a share of the fastest."
        ),
    ] = 0.01,
    json: Json = False,
    seed: Seed = None,
) -> None:
    """Check every data file; print counts, noise and anomalies.

    Counted are graphs, nodes, configs and repeated configs. Exits with 1 if a file is damaged.

    Example: python -m pipeline audit --data DIR
    """
    from data.audit.rows import audit as audit_files
    from data.tree import find_graphs

    files = find_graphs(data_dir(data))
    rows = audit_files(files, max_disagreement=max_disagreement, seed=seed or 0)
    if json:
        _print_audit_json(rows)
    else:
        _print_audit(rows, max_disagreement)
    bad = [row for row in rows if row.error]
    for row in bad:
        say(f"error: {row.error}")
    if bad:
        raise typer.Exit(1)


def _print_audit_json(rows: "Sequence[AuditRow]") -> None:
    from data.audit.rows import as_dict
    from data.audit.tree import compare_names, totals, tree_notes
    from data.tree import missing_parts

    print_json(
        {
            "files": [as_dict(row) for row in rows],
            "parts": totals(rows),
            "official": [asdict(part) for part in compare_names(rows)],
            "missing_parts": missing_parts([row.file for row in rows]),
            "notes": tree_notes(rows),
            "n_bad": sum(row.error is not None for row in rows),
        }
    )


def _print_audit(rows: "Sequence[AuditRow]", max_disagreement: float) -> None:
    from data.audit.tree import HEADER, file_notes, table, tree_notes
    from data.tree import missing_parts

    print_table(HEADER, table(rows))
    typer.echo(
        f"apart: repeated configs whose runtimes differ by more than {100 * max_disagreement:g} %; "
        "ceiling: Kendall tau\nbetween two measurements of the same configs, median over graphs"
    )
    for part in missing_parts([row.file for row in rows]):
        typer.echo(f"missing: {part}")
    for note in [*tree_notes(rows), *file_notes(rows)]:
        typer.echo(f"note: {note}")
