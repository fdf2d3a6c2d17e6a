"""The `prepare` command: a data folder packed into the store, or a store sent elsewhere."""

from collections.abc import Sequence
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
        Path | None,
        typer.Option(help="Also write all packed graphs to this file, such as store.tar.zst."),
    ] = None,
    from_archive: Annotated[
        Path | None, typer.Option(help="Fill the store from such a file, without the dataset.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Pack the files of a data folder into the store, each once.

    Other commands do so on their way. Exits with 1 if a file is damaged.

    Example: python -m pipeline prepare --data DIR
    """
    from data.graph_store.archive import write_archive
    from data.graph_store.prepare import alone
    from features.pruning.rules import pruning_rule
    from features.pruning.store import store_pruned

    if prune is not None:
        pruning_rule(prune)
    _check_archives(archive, from_archive, has_place=bool(data or store))
    target, prepared = _filled_store(data, store, from_archive, workers)
    good = [entry.stored for entry in prepared if entry.stored is not None]
    with alone(target):  # from others, who would sweep up what is half written
        if prune is not None:
            store_pruned(good, prune)
        if archive is not None:
            write_archive(prepared, archive)
    _print_prepared(prepared, target, archive, json=json)
    bad = [entry for entry in prepared if entry.error]
    for entry in bad:
        say(f"error: {entry.error}")
    if bad:
        raise typer.Exit(1)


def _check_archives(archive: Path | None, from_archive: Path | None, *, has_place: bool) -> None:
    from common.errors import UsageError

    if archive and from_archive:
        raise UsageError("--archive and --from-archive: give one of them")
    if from_archive and not has_place:
        raise UsageError("--from-archive: give --store STORE too, or --data DIR, to fill its store")
    if archive is not None and archive.is_dir():
        raise UsageError(f"--archive {archive}: is a folder; expected a file to write")


def _filled_store(
    data: Path | None, store: Path | None, from_archive: Path | None, workers: int | None
) -> "tuple[Path, list[Prepared]]":
    from common.settings import default_store_dir
    from data.graph_store.archive import unpack_archive
    from data.graph_store.prepare import prepare_tree
    from data.tree import find_graphs

    if from_archive is not None:
        target = store or default_store_dir(data_dir(data))
        return target, unpack_archive(from_archive, target)
    folder = data_dir(data)
    target = store or default_store_dir(folder)
    return target, prepare_tree(find_graphs(folder), folder, store=target, workers=workers)


def _print_prepared(
    prepared: "Sequence[Prepared]", store: Path, archive: Path | None, *, json: bool
) -> None:
    from data.graph_store.prepare import HEADER, as_dict, file_bytes, summary

    if json:
        values: dict[str, object] = {"store": str(store)}
        if archive:
            values |= {"archive": str(archive), "archive_bytes": file_bytes(archive)}
        print_json({**values, "files": [as_dict(entry) for entry in prepared]})
        return
    print_table(HEADER, summary(prepared))
    typer.echo(f"store       {store}")
    if archive:
        typer.echo(f"archive     {archive}  {file_bytes(archive) / 2**20:.1f} MiB")
