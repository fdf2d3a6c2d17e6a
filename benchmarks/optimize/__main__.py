"""What `optimize` finds: on ten programs of nobody's catalogue, and on kernels never seen.

`python -m benchmarks.optimize --out runs/optimize` does what is not there yet; `… --report` writes
docs/results/optimize.md from what is there.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import PAGES, render, write_page
from benchmarks.accuracy.tasks import Sources
from benchmarks.optimize.tiles import BUDGETS, run_tiles, tile_rows
from common.atomic import write_text
from common.errors import PipelineError
from common.git import revision
from common.settings import SAMPLE
from pipeline.optimize.optimize import Ask, optimize
from pipeline.optimize.verify import Ratio
from pipeline.optimize.write import BEST, ratio_text, write_result

# Functions of user_programs.py.
PROGRAMS = (
    *("transformer", "n_body", "mixer", "elementwise", "lstm"),
    *("mlp_step", "batch_norm", "stencil", "convolution", "attention"),
)
SEEDS = range(5)
SECONDS = "seconds"


def run_program(name: str, out: Path) -> None:
    """Optimise one program with the usual settings, unless that was done."""
    if (out / BEST).exists():
        return
    start = time.perf_counter()
    found = optimize(Ask(f"benchmarks.optimize.user_programs:{name}"), out)
    write_text(out / SECONDS, f"{time.perf_counter() - start:.0f}\n")
    write_result(found, out)


def program_row(name: str, out: Path) -> list[str]:
    """Return what was found of a program."""
    best = json.loads((out / BEST).read_text("utf-8"))
    decided = best["decisions"].get("options", {}) if best["is_faster"] else {}
    together = best["on_all_cores"]
    return [
        name,
        f"{best['default_ms']:.3f}",
        ratio_text(Ratio(best["ratio"], *best["ci95"])) if best["is_faster"] else "none is faster",
        ratio_text(Ratio(best["aa_ratio"], *best["aa_ci95"])),
        ratio_text(Ratio(together["ratio"], *together["ci95"])) if together else "",
        "; ".join(f"`{option}={value}`" for option, value in decided.items()),
        (out / SECONDS).read_text("utf-8").strip(),
    ]


def write_report(out: Path, folder: Path) -> None:
    """Write optimize.md from what there is."""
    if not all((out / name / BEST).exists() for name in PROGRAMS) or not list(
        out.glob("tiles-*.json")
    ):
        raise PipelineError(f"{out}: not all is there; run without --report first")
    rows, share, n_kernels = tile_rows(out)
    page = render(
        "optimize",
        programs=[program_row(name, out / name) for name in PROGRAMS],
        tiles=rows,
        budgets=[str(budget) for budget in BUDGETS],
        share=share,
        n_kernels=n_kernels,
        environment=json.loads((out / PROGRAMS[0] / BEST).read_text("utf-8"))["environment"],
        revision=revision(),
    )
    write_page(folder / "optimize.md", page)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is missing, or write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of results; resumes")
    parser.add_argument("--report", type=Path, nargs="?", const=PAGES, help="folder for the page")
    options = parser.parse_args(arguments)
    if options.report:
        write_report(options.out, options.report)
        return
    for seed in SEEDS:
        run_tiles(seed, Sources(SAMPLE, None), options.out)
    for name in PROGRAMS:
        run_program(name, options.out / name)
        print(program_row(name, options.out / name))  # noqa: T201


if __name__ == "__main__":
    main()
