"""Measure the gain of `optimize` on ten programs outside the catalogue.

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
from autotune.spaces import SPACES
from benchmarks import errors_in_one_line, resumable_parser, write_page
from common.files import write_text

MODULE = "benchmarks.autotune.user_programs"
FILES = Path(__file__).with_name("files")
FUNCTIONS = ("transformer", "n_body", "elementwise", "lstm", "mlp_step", "batch_norm", "attention")
# The value of `--program` by name: seven functions, and three files of HLO and StableHLO.
PROGRAMS = {name: f"{MODULE}:{name}" for name in FUNCTIONS}
PROGRAMS |= {path.stem: str(path) for path in sorted(FILES.iterdir())}
SECONDS, MINUTES = "seconds", 5.0
EDITS = ("layouts", "kept_apart")


def run_program(name: str, out: Path) -> None:
    """Optimise all decisions of one program, unless the result exists."""
    if (out / BEST).exists():
        return
    start = time.perf_counter()
    result = optimize(OptimizeRequest(PROGRAMS[name], SPACES), out, minutes=MINUTES)
    write_text(out / SECONDS, f"{time.perf_counter() - start:.0f}\n")
    write_result(result, out)


def read_best(out: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / name / BEST).read_text("utf-8"))
    return content


def program_row(name: str, out: Path) -> list[str]:
    best = read_best(out, name)
    is_faster, together = best["is_faster"], best["on_all_cores"]
    decisions = best["decisions"] if is_faster else {}
    options = [f"`{option}={value}`" for option, value in decisions.get("options", {}).items()]
    edits = [f"{kind}: {', '.join(decisions[kind])}" for kind in EDITS if kind in decisions]
    return [
        name,
        f"{best['default_ms']:.3f}",
        ratio_text(Ratio(best["ratio"], *best["ci95"])) if is_faster else "none is faster",
        ratio_text(Ratio(best["aa_ratio"], *best["aa_ci95"])),
        ratio_text(Ratio(together["ratio"], *together["ci95"])) if together else "",
        "; ".join((*options, *edits)).replace("kept_apart", "barriers after"),
        str(best["candidates"]["tried"]),
        (out / name / SECONDS).read_text("utf-8").strip(),
    ]


@errors_in_one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Measure missing programs and write the page."""
    options = resumable_parser(__doc__).parse_args(arguments)
    out = options.out
    for name in PROGRAMS:
        run_program(name, out / name)
        print(name, read_best(out, name)["ratio"])  # noqa: T201
    write_page(
        "optimize",
        options.report,
        programs=[program_row(name, out) for name in PROGRAMS],
        minutes=MINUTES,
        environment=read_best(out, "n_body")["environment"],
    )


if __name__ == "__main__":
    main()
