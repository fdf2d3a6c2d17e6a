"""The `prepare` command: a data folder packed into the store."""

from typing import Annotated

import typer

from pipeline.cli.console import (
    DataDir,
    Json,
    RayAddress,
    StoreDir,
    WorkerCount,
    command,
    data_dir,
    print_json,
    print_table,
    say,
)


@command
def prepare(
    data: DataDir = None,
    store: StoreDir = None,
    prune: Annotated[
        str | None, typer.Option(help="Also prune every layout graph by this rule, and keep that.")
    ] = None,
    workers: WorkerCount = None,
    ray: RayAddress = None,
    json: Json = False,
) -> None:
    """Pack the files of a data folder into the store, each once.

    Other commands do so on their way. Exits with 1 if a file is damaged.

    Example: python -m pipeline prepare --data DIR
    """
    from common.settings import default_store_dir
    from data.graph_store.prepare import HEADER, alone, as_dict, summary
    from data.graph_store.prepare import prepare as prepare_files
    from data.tree import find_graphs
    from features.pruning.rules import pruning_rule
    from features.pruning.store import store_pruned
    from pipeline.jobs.files import packing
    from pipeline.jobs.workers import Workers

    if prune is not None:
        pruning_rule(prune)
    folder = data_dir(data)
    target = store or default_store_dir(folder)
    prepared = prepare_files(find_graphs(folder), target, pack=packing(Workers(workers, ray)))
    if prune is not None:
        with alone(target):  # from others, who would sweep up what is half written
            store_pruned([entry.stored for entry in prepared if entry.stored], prune)
    if json:
        print_json({"store": str(target), "files": [as_dict(entry) for entry in prepared]})
    else:
        print_table(HEADER, summary(prepared))
        typer.echo(f"store       {target}")
    bad = [entry for entry in prepared if entry.error]
    for entry in bad:
        say(f"error: {entry.error}")
    if bad:
        raise typer.Exit(1)
