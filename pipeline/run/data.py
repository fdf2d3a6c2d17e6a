"""The data of a run: every file packed and checked, and what tells it from other data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from data.audit.rows import AuditRow, audit
from data.graph_store.fingerprint import fingerprint
from data.graph_store.prepare import prepare_tree
from data.tree import GraphFile, find_graphs
from models.config.recipe import Recipe
from models.training.jobs import Progress
from pipeline.run.costs import Costs


@dataclass(frozen=True)
class Checked:
    """What the check has found.

    Attributes:
        files: the good ones, packed.
        rows: of every file, damaged ones included.
        config: of the run: its recipe and its data.
        costs: of the check itself.
    """

    files: list[GraphFile]
    rows: list[AuditRow]
    config: dict[str, Any]
    costs: Costs


def check_data(
    data_dir: Path,
    recipe: Recipe,
    splits: tuple[str, ...],
    *,
    store: Path | None,
    skip_bad: bool,
    progress: Progress | None,
    say: Callable[[str], None],
) -> Checked:
    """Pack and check the files of some splits.

    Raises:
        PipelineError: damaged files, unless `skip_bad`; no usable data, or a full disk.
    """
    files = find_graphs(data_dir, splits=splits)
    costs = Costs()
    with costs.stage("prepare and audit"):
        rows = _audit(files, data_dir, store, progress, say)
    bad = [row for row in rows if row.error]
    if bad and not skip_bad:
        raise PipelineError(_name_bad(bad))
    good = [row.file for row in rows if not row.error]
    sources = [file for file, row in zip(files, rows, strict=True) if not row.error]
    if not good:
        raise PipelineError(f"{data_dir}: no good file is left; see `audit`")
    for row in bad:
        say(f"left out: {row.error}")
    config = {"data": fingerprint(sources), "recipe": recipe.model_dump(mode="json")}
    return Checked(good, rows, config, costs)


def _audit(
    files: Sequence[GraphFile],
    data_dir: Path,
    store: Path | None,
    progress: Progress | None,
    say: Callable[[str], None],
) -> list[AuditRow]:
    """Pack and check every file; what is damaged in the store alone is packed anew, once."""
    prepared = prepare_tree(files, data_dir, store=store, progress=progress)
    rows = audit(files, prepared=prepared, progress=progress)
    spoilt = [
        entry.stored.path
        for entry, row in zip(prepared, rows, strict=True)
        if row.error and entry.stored and str(entry.stored.path) in row.error
    ]
    if not spoilt:
        return rows
    for path in spoilt:
        say(f"{path}: damaged in the store; packed anew")
        path.unlink(missing_ok=True)
    prepared = prepare_tree(files, data_dir, store=store, progress=progress)
    return audit(files, prepared=prepared, progress=progress)


def _name_bad(bad: Sequence[AuditRow]) -> str:
    more = f" (and {len(bad) - 1} more bad files; `audit` lists them)" if len(bad) > 1 else ""
    return f"{bad[0].error}{more}; mend or remove, or pass --skip-bad"
