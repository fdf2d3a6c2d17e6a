"""The commands that make and check data: synthesize, audit; `collect` has a file of its own."""

from pathlib import Path
from typing import Annotated

import typer

from console import (
    DataDir,
    Debug,
    Json,
    Seed,
    command,
    data_dir,
    print_json,
    print_table,
    progress_bar,
    say,
)


@command
def synthesize(
    out: Annotated[Path, typer.Option(help="Folder for the tree.")],
    plan: Annotated[str, typer.Option(help="tiny (tests) or small (examples).")] = "small",
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Write example data of the official format, with a known cost model behind it.

    Example: python -m pipeline synthesize --out data/raw/synthetic --seed 0
    """
    from data.errors import UsageError
    from data.synthetic import PLANS
    from data.synthetic import synthesize as write_tree

    if plan not in PLANS:
        raise UsageError(f"--plan {plan}: no such plan; known: {', '.join(PLANS)}")
    write_tree(out, seed=seed or 0, plan=PLANS[plan])
    if json:
        print_json({"out": str(out), "plan": plan, "seed": seed or 0})
    else:
        typer.echo(f"data        {out}")


@command
def audit(
    data: DataDir = None,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Check every file; print graphs, nodes, configs, duplicates and anomalies.

    Exits with 1 if a file is damaged. Example: python -m pipeline audit --data DIR
    """
    from data.audit import as_dict, summary
    from data.audit import audit as audit_files
    from data.tree import find_graphs, missing_parts

    files = find_graphs(data_dir(data))
    with progress_bar() as progress:
        rows = audit_files(files, progress=progress)
    bad = [row for row in rows if row.error]
    if json:
        print_json(
            {
                "files": [as_dict(row) for row in rows],
                "missing_parts": missing_parts(files),
                "n_bad": len(bad),
            }
        )
    else:
        header, table = summary(rows)
        print_table(header, table)
        for part in missing_parts(files):
            typer.echo(f"missing: {part}")
        for row in rows:
            for note in row.notes:
                typer.echo(f"note: {row.file.submission_id}: {note}")
    for row in bad:
        say(f"error: {row.error}")
    if bad:
        raise typer.Exit(1)
