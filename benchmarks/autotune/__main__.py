"""What `optimize` finds: on ten programs of nobody's catalogue, and on kernels never seen.

`python -m benchmarks.autotune --out runs/optimize` does what is not there yet; `… --report` writes
docs/results/optimize.md from what is there.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from autotune.optimize.candidate import Ratio
from autotune.optimize.optimize import optimize
from autotune.optimize.session import OptimizeRequest
from autotune.optimize.write import BEST, ratio_text, write_result
from benchmarks import PAGES, errors_in_one_line, render, write_page
from benchmarks.accuracy.tasks import Sources
from benchmarks.autotune.compiles import (
    USERS,
    options_section,
    run_options,
    run_tiles,
    tiles_section,
)
from common.errors import PipelineError
from common.files import write_text
from common.reproducibility import revision
from common.settings import SAMPLE

SEEDS = range(5)
SECONDS = "seconds"
HEADER = """# What choosing gains

Written by `python -m benchmarks.autotune --out runs/optimize --report`, which without `--report`
measures what is missing. Each section names the revision that measured or wrote it."""


def run_program(name: str, out: Path) -> None:
    """Optimise one program with the usual settings, unless that was done."""
    if (out / BEST).exists():
        return
    start = time.perf_counter()
    found = optimize(OptimizeRequest(f"benchmarks.autotune.user_programs:{name}"), out)
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


def programs_section(out: Path) -> str | None:
    if not all((out / name / BEST).exists() for name in USERS):
        return None
    return render(
        "optimize_programs",
        programs=[program_row(name, out / name) for name in USERS],
        environment=json.loads((out / USERS[0] / BEST).read_text("utf-8"))["environment"],
        revision=revision(),
    )


SECTIONS = {
    "Ten programs of a user's": programs_section,
    "Compiler options of families never seen": options_section,
    "Tiles of kernels never seen": tiles_section,
}


def write_report(out: Path, folder: Path) -> None:
    """Write optimize.md.

    Raises:
        PipelineError: something was not measured.
    """
    parts = [HEADER]
    for title, section in SECTIONS.items():
        text = section(out)
        if not text:
            raise PipelineError(f"{out}: not all is there ({title}); run without --report first")
        parts.append(f"## {title}\n\n{text.strip()}")
    write_page(folder / "optimize.md", "\n\n".join(parts))


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is missing, or write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of results; resumes")
    parser.add_argument("--report", type=Path, nargs="?", const=PAGES, help="folder for the page")
    options = parser.parse_args(arguments)
    if options.report:
        write_report(options.out, options.report)
        return
    run_options(SEEDS, options.out)
    for seed in SEEDS:
        run_tiles(seed, Sources(SAMPLE, None), options.out)
    for name in USERS:
        run_program(name, options.out / name)
        print(program_row(name, options.out / name))  # noqa: T201


if __name__ == "__main__":
    main()
