"""Train models against each other on what they have not seen, and report how well they rank.

`python -m benchmarks.accuracy --out runs/accuracy` trains every (task, model, seed) that is not
there yet; `… --report` writes docs/results/accuracy.md and its picture from what is there.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks import PAGES, errors_in_one_line
from benchmarks.accuracy.cells import CONTENDERS, SHIPPED, Cell, contenders_of, run_cell
from benchmarks.accuracy.report import leads_over, read_cells, write_report
from benchmarks.accuracy.tasks import TASKS, Sources, names_of, options_parser, why_no_data
from common.atomic import alone_in
from common.errors import PipelineError, UsageError
from models.config.custom import is_own
from models.registry import MODELS

EXAMPLE = """
example, some seconds:
  python -m benchmarks.accuracy --out runs/few --tasks tiles --models floor linear network --seeds 0
  python -m benchmarks.accuracy --out runs/few --report runs/few
"""
TRAINED = ("tasks", "models", "own", "seeds", "set")  # what options say of what is trained
_say = partial(print, flush=True)


def cells_of(
    tasks: Sequence[str],
    contenders: Sequence[str],
    seeds: Sequence[int],
    sources: Sources,
    *,
    overrides: Sequence[str] = (),
) -> Iterator[Cell]:
    """Yield the cells that can be trained here, seed by seed; says what is left out, and why.

    Contenders that the training of what is shipped serves have no cell of their own beside it.
    """
    reasons = {task: why_no_data(TASKS[task], sources) for task in tasks}
    for task, reason in reasons.items():
        if reason:
            _say(f"{task}: left out: {reason}")
    for seed in seeds:
        for task in (task for task in tasks if not reasons[task]):
            for name in (*contenders_of(task), *filter(is_own, contenders)):
                cell = Cell(task, name, seed, tuple(overrides))
                is_served = cell.is_served and SHIPPED in contenders
                if name in contenders and not is_served:
                    yield cell


def run_cells(cells: Sequence[Cell], sources: Sources, out: Path) -> int:
    """Run cells; return how many failed."""
    failed = 0
    for number, cell in enumerate(cells, start=1):
        start = time.perf_counter()
        try:
            is_new = run_cell(cell, sources, out)
            text = f"{time.perf_counter() - start:.1f} s" if is_new else "was there"
        except PipelineError as error:
            failed, text = failed + 1, f"failed: {error}"
        _say(f"{number}/{len(cells)} {cell.task}, {cell.contender}, seed {cell.seed}: {text}")
    return failed


def _refuse_trained(
    options: argparse.Namespace, parser: argparse.ArgumentParser, what: str
) -> None:
    """Refuse options that say what to train beside one that takes all that a folder holds."""
    chosen = [key for key in TRAINED if getattr(options, key) != parser.get_default(key)]
    if chosen:
        told = ", ".join(f"--{key}" for key in chosen)
        parser.error(f"{what} all that --out holds; expected it without {told}")


def _write_page(options: argparse.Namespace) -> None:
    """Write the page of all that a folder holds."""
    found = {path.name.partition("--")[0] for path in (options.out / "cells").glob("*.json")}
    if options.report == PAGES and found != {*TASKS}:
        sys.exit("--report: tasks of the page are missing; --report FOLDER writes the others")
    own = None if options.report == PAGES else f"--out {options.out} --report {options.report}"
    write_report(read_cells(options.out / "cells"), options.report, options=own)


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is missing, or write the report."""
    parser = options_parser(__doc__, list(TASKS), n_seeds=5)
    models = list(dict.fromkeys(name for known in CONTENDERS.values() for name in known))
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--models", **names_of(models))
    told = "a model of one's own, instead of --models; --tasks of its kind, --set for its table"
    either.add_argument("--own", metavar="MODULE:CLASS", help=told)
    parser.add_argument("--report", type=Path, nargs="?", const=PAGES, help="folder for the page")
    told = (
        "another --out, or a model of this one: say what each model has more than itself there, or "
        "than that model, paired by graph and seed, and end"
    )
    parser.add_argument("--against", metavar="OUT|MODEL", help=told)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    by_task = (f"  {task}: {', '.join(contenders_of(task))}" for task in TASKS)
    parser.epilog = "\n".join(("models by task:", *by_task, EXAMPLE))
    options = parser.parse_args(arguments)
    if any(key.startswith(("layout.models", "tile.models")) for key in options.set):
        parser.error("--set: --models says what is trained, or --own, a model of one's own")
    if options.against:
        _refuse_trained(options, parser, "--against: compares")
        for line in leads_over(options.out, options.against):
            _say(line)
        return
    if options.report:
        _refuse_trained(options, parser, "--report: writes")
        _write_page(options)
        return
    sources = Sources(options.sample, options.real)
    if options.own and not is_own(options.own):
        raise UsageError(f"--own {options.own}: expected 'package.module:Class'")
    models = [options.own] if options.own else options.models
    given = options.tasks, models, options.seeds, sources
    todo = list(cells_of(*given, overrides=options.set))
    if not todo:
        sys.exit("error: nothing to train: no task here has one of these models and its data")
    for cell in todo:
        cell.recipe()  # refuses wrong usage before anything is trained
    trained = {model for cell in todo for model in cell.known_contender.models}
    for key in options.set:
        if (table := key.partition(".")[0]) in MODELS and table not in trained:
            names = ", ".join(sorted(trained)) or "nothing"
            raise UsageError(f"--set {key}: is not read; trained is {names}")
    with alone_in(options.out):
        failed = run_cells(todo, sources, options.out)
    if failed:
        sys.exit(f"{failed} of {len(todo)} failed")


if __name__ == "__main__":
    main()
