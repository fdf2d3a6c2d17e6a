"""`make rehearsal`: run everything on graphs of the largest real shapes, and on a small grid.

Writes rehearsal.md and rehearsal.json: what each stage took, and laws fitted to it, from which
`python -m pipeline plan` computes what a recipe costs. Graphs and finished cases are kept in
--folder, so that a rehearsal that was stopped goes on.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.rehearsal.cases import GRID, TILE_GRID, TREES_GRID, Case, largest_cases
from benchmarks.rehearsal.tree import write_case
from common.atomic import write_text
from common.settings import ROOT

# One thread each, and no libraries that take more on their own.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}


def measured(case: Case, folder: Path) -> dict[str, object]:
    """Return what a case took: as kept in `folder`, or run now in a process of its own."""
    kept = kept_file(case, folder)
    slug = kept.stem
    if kept.exists():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    tree = folder / f"{slug}.tree"
    shutil.rmtree(tree, ignore_errors=True)
    write_case(tree, folder / "made", case)
    spec = folder / f"{slug}.case"
    write_text(spec, json.dumps(asdict(case)))
    start_it = "from benchmarks.rehearsal.run import main; main()"
    command = [sys.executable, "-c", start_it, str(spec), str(tree)]
    start = time.perf_counter()
    done = subprocess.run(  # noqa: S603
        command,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr}")
    found = json.loads(done.stdout)
    found |= {"name": case.name, "axes": case.axes, "wall_s": time.perf_counter() - start}
    write_text(kept, json.dumps(found, indent=1))
    shutil.rmtree(tree)
    spec.unlink()
    return dict(found)


def kept_file(case: Case, folder: Path) -> Path:
    """Return where a case's results are kept."""
    return folder / f"{case.name.replace(':', '-').replace(' ', '-')}.json"


def main() -> None:
    """Run all cases that are not done; write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="holds graphs and what is done")
    parser.add_argument("--only", default="", help="only cases whose name begins so; no report")
    parser.add_argument("--report", action="store_true", help="run none; report what is done")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    results = []
    for case in (*GRID, *TREES_GRID, *TILE_GRID, *largest_cases()):
        is_done = kept_file(case, options.folder).exists()
        if case.name.startswith(options.only) and (is_done or not options.report):
            results.append(measured(case, options.folder))
            print(case.name, f"{results[-1]['wall_s']:.0f} s", flush=True)  # noqa: T201
    if not options.only:
        from benchmarks.rehearsal.report import write_results

        for path in write_results(results):
            print(path)  # noqa: T201


if __name__ == "__main__":
    main()
