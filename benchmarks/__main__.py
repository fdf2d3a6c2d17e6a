"""`make bench`: measure, and write docs/results/speed.md.

`python -m benchmarks layout_model …` measures and prints these sections alone.
"""

import argparse
import platform

import torch

from benchmarks import PAGES, write_page
from benchmarks.speed import layout_model, packing, segment_memory, stages
from common.reproducibility import revision

SECTIONS = {
    "stages": stages.report,
    "layout_model": layout_model.report,
    "packing": packing.report,
    "segment_memory": segment_memory.report,
    "workers": stages.report_workers,
}

HEADER = """# Speed and memory

Written by `make bench`. Machines differ and are noisy: compare figures of one run only.
Packing of the largest graph stands in [packing_largest.md](packing_largest.md)."""


def main() -> None:
    """Run every benchmark and write the results, or print the sections that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    chosen = parser.parse_args().sections
    if not set(chosen) <= set(SECTIONS):
        parser.error(f"sections: expected some of {', '.join(SECTIONS)}")
    parts = [report() for name, report in SECTIONS.items() if name in (chosen or SECTIONS)]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU at hand"
    parts.append(f"Measured on {platform.machine()}, {gpu}, revision {revision()}.")
    if chosen:
        print("\n\n".join(parts))  # noqa: T201
    else:
        write_page(PAGES / "speed.md", "\n\n".join([HEADER, *parts]))


if __name__ == "__main__":
    main()
