"""Measure the gain of `optimize` on ten programs outside the catalogue, by each `--search`.

`python -m benchmarks.autotune --out runs/optimize` measures missing programs, and then writes
docs/results/optimize.md.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.optimize.candidate import Ratio
from autotune.optimize.optimize import optimize
from autotune.optimize.session import OptimizeRequest
from autotune.optimize.write import BEST, ratio_text, write_result
from benchmarks import errors_in_one_line, resumable_parser, write_page
from common.files import write_text

MODULE = "benchmarks.autotune.user_programs"
FILES = Path(__file__).with_name("files")
FUNCTIONS = ("transformer", "n_body", "elementwise", "lstm", "mlp_step", "batch_norm", "attention")
# The value of `--program` by name: seven functions, and three files of HLO and StableHLO.
PROGRAMS = {name: f"{MODULE}:{name}" for name in FUNCTIONS}
PROGRAMS |= {path.stem: str(path) for path in sorted(FILES.iterdir())}
# `--search ranker` needs a run, and no model of a run ranks compiler options.
SEARCHES = ("portfolio", "random", "genetic", "go")
SECONDS = "seconds"


def run_program(name: str, search: str, out: Path) -> None:
    """Optimise one program with the default settings, unless the result exists."""
    if (out / BEST).exists():
        return
    start = time.perf_counter()
    request = OptimizeRequest(PROGRAMS[name], search=search)
    result = optimize(request, out)
    write_text(out / SECONDS, f"{time.perf_counter() - start:.0f}\n")
    write_result(result, out)


def read_best(out: Path, name: str, search: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / name / search / BEST).read_text("utf-8"))
    return content


def program_row(name: str, out: Path) -> list[str]:
    best = read_best(out, name, SEARCHES[0])
    is_faster, together = best["is_faster"], best["on_all_cores"]
    options = best["decisions"].get("options", {}) if is_faster else {}
    return [
        name,
        f"{best['default_ms']:.3f}",
        ratio_text(Ratio(best["ratio"], *best["ci95"])) if is_faster else "none is faster",
        ratio_text(Ratio(best["aa_ratio"], *best["aa_ci95"])),
        ratio_text(Ratio(together["ratio"], *together["ci95"])) if together else "",
        "; ".join(f"`{option}={value}`" for option, value in options.items()),
        (out / name / SEARCHES[0] / SECONDS).read_text("utf-8").strip(),
    ]


def search_row(name: str, out: Path) -> list[str]:
    results = [read_best(out, name, search) for search in SEARCHES]
    return [name, *(f"{best['ratio']:.3f}" if best["is_faster"] else "1" for best in results)]


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure missing programs and write the page."""
    options = resumable_parser(__doc__).parse_args(arguments)
    out = options.out
    for name in PROGRAMS:
        for search in SEARCHES:
            run_program(name, search, out / name / search)
            print(search, name, read_best(out, name, search)["ratio"])  # noqa: T201
    write_page(
        "optimize",
        options.report,
        programs=[program_row(name, out) for name in PROGRAMS],
        searches=[search_row(name, out) for name in PROGRAMS],
        names=SEARCHES,
        environment=read_best(out, "n_body", SEARCHES[0])["environment"],
    )


if __name__ == "__main__":
    main()
