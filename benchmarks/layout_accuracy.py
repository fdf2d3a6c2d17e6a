"""How well layout models rank held-out configs and graphs, against each other.

`python -m benchmarks.layout_accuracy --out runs/accuracy` trains every (task, model, seed) that is
not there yet; `… --report` writes benchmarks/LAYOUT_ACCURACY.md from what is there.
`… --tuning --set KEY=VALUE` tries hyper-parameters on data that is never reported.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from benchmarks.accuracy_cells import CONTENDERS, Cell, run_cell
from benchmarks.accuracy_table import read_cells, report
from benchmarks.accuracy_tasks import REPORTED_SEEDS, TASKS, Sources, why_no_data
from data.atomic import write_text
from data.errors import PipelineError
from settings import SAMPLE

REPORT = Path(__file__).with_name("LAYOUT_ACCURACY.md")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def cells_of(
    tasks: Sequence[str],
    contenders: Sequence[str],
    seeds: Sequence[int],
    sources: Sources,
    *,
    settings: Sequence[str] = (),
    tuning: bool = False,
) -> Iterator[Cell]:
    """Yield the cells that can be trained here, seed by seed; says what is left out, and why."""
    wanted = [task for task in tasks if not _left_out(task, _why_no_task(task, sources, tuning))]
    models = [name for name in contenders if not _left_out(name, CONTENDERS[name].why_absent())]
    for seed, task, name in product(seeds, wanted, models):
        if not CONTENDERS[name].is_for(task):
            continue
        yield Cell(task, name, seed, overrides_for(name, settings), tuning)


def overrides_for(contender: str, settings: Sequence[str]) -> tuple[str, ...]:
    """Return the overrides meant for a contender: "key=value", or "contender:key=value" for it."""
    found = []
    for setting in settings:
        name, colon, rest = setting.partition(":")
        if not (colon and name in CONTENDERS):
            found.append(setting)
        elif name == contender:
            found.append(rest)
    return tuple(found)


def _why_no_task(task: str, sources: Sources, tuning: bool) -> str | None:
    if tuning and TASKS[task].tuning_parts is None:
        return "all of it is reported, nothing is left to tune on"
    return why_no_data(TASKS[task], sources)


def _left_out(name: str, reason: str | None) -> bool:
    if reason:
        _say(f"{name}: left out: {reason}")
    return reason is not None


def run_cells(cells: Sequence[Cell], sources: Sources, out: Path, *, workers: int = 1) -> int:
    """Run cells, several processes side by side if asked for; return how many failed."""
    failed = 0
    for number, (cell, text) in enumerate(_outcomes(cells, sources, out, workers), start=1):
        failed += text.startswith("failed")
        name = f"{cell.task}, {cell.contender}, seed {cell.seed}"
        _say(f"{number}/{len(cells)} {name}: {text}")
    return failed


def _outcomes(
    cells: Sequence[Cell], sources: Sources, out: Path, workers: int
) -> Iterator[tuple[Cell, str]]:
    if workers == 1:
        yield from ((cell, _outcome(cell, sources, out)) for cell in cells)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(_outcome, cell, sources, out): cell for cell in cells}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _outcome(cell: Cell, sources: Sources, out: Path) -> str:
    """Run one cell; say in a few words what came of it."""
    start = time.perf_counter()
    try:
        is_new = run_cell(cell, sources, out)
    except PipelineError as error:
        return f"failed: {error}"
    return f"{time.perf_counter() - start:.1f} s" if is_new else "was there"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, or write the report."""
    options = _parser().parse_args(arguments)
    try:
        if options.report:
            write_text(options.report, "\n".join(report(read_cells(options.out / "cells"))) + "\n")
            _say(str(options.report))
            return 0
        os.environ.update(ONE_THREAD)  # of the workers; in this process recipes see to it
        sources = Sources(options.sample, options.real)
        given = options.tasks, options.models, options.seeds, sources
        cells = list(cells_of(*given, settings=options.set, tuning=options.tuning))
        failed = run_cells(cells, sources, options.out, workers=options.workers)
        if options.tuning and cells:
            print("\n".join(report(read_cells(options.out / "tuning"))))  # noqa: T201
    except PipelineError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of results; resumes")
    parser.add_argument("--tasks", type=_names(TASKS), default=list(TASKS), metavar="A,B")
    parser.add_argument(
        "--models", type=_names(CONTENDERS), default=list(CONTENDERS), metavar="A,B"
    )
    parser.add_argument("--seeds", type=_seeds, default=list(REPORTED_SEEDS), metavar="0,1,…")
    real = os.environ.get("TPUGRAPHS_REAL")
    parser.add_argument("--real", type=Path, default=Path(real) if real else None, metavar="DIR")
    parser.add_argument("--sample", type=Path, default=SAMPLE, metavar="DIR")
    parser.add_argument("--workers", type=int, default=1, help="processes side by side")
    parser.add_argument("--tuning", action="store_true", help="judge on data never reported")
    parser.add_argument(
        "--set", action="append", default=[], metavar="[MODEL:]KEY=VALUE", help="override a recipe"
    )
    parser.add_argument("--report", type=Path, nargs="?", const=REPORT, help="write the report")
    return parser


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"'{unknown[0]}': expected some of {', '.join(known)}")
        return names

    return parse


def _seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
