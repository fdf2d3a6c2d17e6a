"""Train models against each other and report how well they rank unseen configs and programs.

`python -m benchmarks.accuracy --out runs/accuracy` trains every missing (task, model, seed).
With `--report` it writes docs/results/accuracy.md, and overview.png if its models have layouts.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import PAGES, errors_in_one_line
from benchmarks.accuracy.cells import CONTENDERS, Cell, contenders_of, run_cell
from benchmarks.accuracy.report import compare_with, read_cells, write_report
from benchmarks.accuracy.tasks import TASKS, Sources, why_no_data
from common.errors import PipelineError, UsageError
from common.files import alone_in
from common.settings import SAMPLE
from models.config.custom import is_own
from models.registry import MODELS

EXAMPLE = """
example, some seconds:
  python -m benchmarks.accuracy --out runs/few --tasks tiles --models baseline tile_linear --seeds 0
  python -m benchmarks.accuracy --out runs/few --report runs/few
"""
N_SEEDS = 5
_say = partial(print, flush=True)


def cells_of(
    tasks: Sequence[str],
    names: Sequence[str],
    seeds: Sequence[int],
    sources: Sources,
    *,
    overrides: Sequence[str] = (),
) -> Iterator[Cell]:
    """Yield the cells that can be trained here, seed by seed. Print the tasks without data."""
    reasons = {task: why_no_data(TASKS[task], sources) for task in tasks}
    for task, reason in reasons.items():
        if reason:
            _say(f"{task}: left out: {reason}")
    for seed in seeds:
        for task in (task for task in tasks if not reasons[task]):
            pool = [*contenders_of(task), *filter(is_own, names)]
            yield from (Cell(task, name, seed, tuple(overrides)) for name in pool if name in names)


def run_cells(cells: Sequence[Cell], sources: Sources, out: Path) -> int:
    """Run cells, print a line for each, and return the number of failed ones."""
    n_failed = 0
    for number, cell in enumerate(cells, start=1):
        start = time.perf_counter()
        try:
            is_new = run_cell(cell, sources, out)
            text = f"{time.perf_counter() - start:.1f} s" if is_new else "exists"
        except PipelineError as error:
            n_failed, text = n_failed + 1, f"failed: {error}"
        _say(f"{number}/{len(cells)} {cell.task}, {cell.name}, seed {cell.seed}: {text}")
    return n_failed


def options_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""

    def some_of(names: Sequence[str]) -> dict[str, Any]:
        text = f"some of {', '.join(names)} (default: all)"
        return {"nargs": "+", "choices": names, "default": names, "metavar": "NAME", "help": text}

    by_task = (f"  {task}: {', '.join(contenders_of(task))}" for task in TASKS)
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="\n".join(("models by task:", *by_task, EXAMPLE)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    real = os.environ.get("TPUGRAPHS_REAL")
    models = list(dict.fromkeys(name for of_kind in CONTENDERS.values() for name in of_kind))
    option = parser.add_argument
    option("--out", type=Path, required=True, help="folder of results; the same command resumes")
    option("--tasks", **some_of(list(TASKS)))
    option("--models", **some_of(models))
    option("--own", metavar="MODULE:CLASS", help="a custom model, instead of --models")
    option("--seeds", type=int, nargs="+", default=[*range(N_SEEDS)], metavar="N")
    text = "a key of the models' recipe; give another --out"
    option("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "folder of real TpuGraphs files (default: TPUGRAPHS_REAL)"
    option("--real", type=Path, default=real and Path(real), metavar="DIR", help=text)
    text = "folder of a labelled sample (default: data/sample)"
    option("--sample", type=Path, default=SAMPLE, metavar="DIR", help=text)
    option("--report", type=Path, nargs="?", const=PAGES, help="write the page, into this folder")
    text = "only print the results of another --out, or of one of the models, minus these results"
    option("--against", metavar="OUT|MODEL", help=text)
    return parser


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Train missing cells, write the report, or compare results."""
    options = options_parser().parse_args(arguments)
    if options.against:
        _say(*compare_with(options.out, options.against), sep="\n")
    elif options.report:
        cells = read_cells(options.out)
        if options.report == PAGES and {cell["task"] for cell in cells} != {*TASKS}:
            raise UsageError("--report: tasks are missing; --report FOLDER writes the others")
        write_report(cells, options.report)
    else:
        train_cells(options)


def train_cells(options: argparse.Namespace) -> None:
    """Train the missing cells. Wrong options raise an error before the first training."""
    if any(key.startswith(("layout.models", "tile.models")) for key in options.set):
        raise UsageError("--set: --models names the models to train, or --own a custom one")
    if options.own and not is_own(options.own):
        raise UsageError(f"--own {options.own}: expected 'package.module:Class'")
    sources = Sources(options.sample, options.real)
    names = [options.own] if options.own else options.models
    todo = list(cells_of(options.tasks, names, options.seeds, sources, overrides=options.set))
    if not todo:
        raise PipelineError("nothing to train: no task here has one of these models and its data")
    for cell in todo:
        cell.recipe()
    models = {model for cell in todo for model in cell.contender.models}
    for key in options.set:
        if (table := key.partition(".")[0]) in MODELS and table not in models:
            tables = ", ".join(sorted(models)) or "no model"
            raise UsageError(f"--set {key}: no model reads the key; expected a table of {tables}")
    with alone_in(options.out):
        n_failed = run_cells(todo, sources, options.out)
    if n_failed:
        sys.exit(f"{n_failed} of {len(todo)} failed")


if __name__ == "__main__":
    main()
