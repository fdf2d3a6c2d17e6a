"""The `prepare` command: a data folder packed into the store, or a store sent elsewhere."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.console import (
    DataDir,
    Debug,
    Json,
    StoreDir,
    command,
    data_dir,
    print_json,
    print_table,
    progress_bar,
    say,
)

if TYPE_CHECKING:
    from data.graph_store.prepare import Prepared


@command
def prepare(
    data: DataDir = None,
    store: StoreDir = None,
    prune: Annotated[
        str | None, typer.Option(help="Also prune every layout graph by this rule, and keep that.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Files packed at once; below 64 MiB in all, one. Default: one per core, up to 4.",
        ),
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(help="Also write every packed graph, compressed, to this folder.")
    ] = None,
    from_archive: Annotated[
        Path | None, typer.Option(help="Fill the store from such a folder, without the dataset.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Pack the files of a data folder into the store, each once.

    Other commands do so on their way. Exits with 1 if a file is damaged.

    Example: python -m pipeline prepare --data DIR
    """
    from data.graph_store.archived_store import ship_store
    from data.graph_store.prepare import alone, write_columns
    from features.pruning.store import check_rule, store_pruned

    if prune is not None:
        check_rule(prune)
    _check_archives(archive, from_archive, has_place=bool(data or store))
    with progress_bar() as progress:
        target, prepared = _filled_store(data, store, from_archive, workers, progress)
        good = [entry.stored for entry in prepared if entry.stored is not None]
        with alone(target):  # from others, who would sweep up what is half written
            if prune is not None:
                store_pruned(good, prune, progress=progress)
            if archive is not None:
                ship_store(prepared, archive, progress=progress)
            columns = write_columns(target, prepared)
    _print_prepared(prepared, target, columns, archive, json=json)
    bad = [entry for entry in prepared if entry.error]
    for entry in bad:
        say(f"error: {entry.error}")
    if bad:
        raise typer.Exit(1)


def _check_archives(archive: Path | None, from_archive: Path | None, *, has_place: bool) -> None:
    """Refuse options that do not go together, before anything is packed."""
    from common.errors import UsageError
    from data.graph_store.compression import import_zstandard

    if archive and from_archive:
        raise UsageError("--archive and --from-archive: give one of them")
    if from_archive and not has_place:
        raise UsageError("--from-archive: give --store STORE too, or --data DIR, to fill its store")
    if archive or from_archive:
        import_zstandard()


def _filled_store(
    data: Path | None,
    store: Path | None,
    from_archive: Path | None,
    workers: int | None,
    progress: Callable[[str, int, int], None],
) -> "tuple[Path, list[Prepared]]":
    """Bring the store up to date, from a data folder or from an archive; return its place too."""
    from common.settings import default_store_dir
    from data.graph_store.archived_store import unpack_store
    from data.graph_store.prepare import prepare_tree
    from data.tree import find_graphs

    if from_archive is not None:
        target = store or default_store_dir(data_dir(data))
        return target, unpack_store(from_archive, target, progress=progress)
    folder = data_dir(data)
    target = store or default_store_dir(folder)
    files = find_graphs(folder)
    return target, prepare_tree(files, folder, store=target, workers=workers, progress=progress)


def _print_prepared(
    prepared: "Sequence[Prepared]", store: Path, columns: Path, archive: Path | None, *, json: bool
) -> None:
    """Print what a store holds, and of which files it does not."""
    from data.graph_store.summary import as_dict, summary

    if json:
        files = [as_dict(entry, archive=archive) for entry in prepared]
        places = {"store": str(store)} | ({"archive": str(archive)} if archive else {})
        print_json({**places, "files": files})
    else:
        print_table(*summary(prepared, archive=archive))
        typer.echo(f"store       {store}")
        typer.echo(f"columns     {columns}")
        if archive:
            typer.echo(f"archive     {archive}")
