"""`make bench`: measure, and write benchmarks/RESULTS.md."""

import platform
from pathlib import Path

import torch

from benchmarks.speed import (
    blending,
    compiled_block,
    inference_chunks,
    layout_model,
    packing,
    segment_memory,
    shipped_model,
    stages,
    statistics_cost,
    tile_inference,
)
from common.atomic import write_text
from common.git import revision

RESULTS = Path(__file__).with_name("RESULTS.md")

HEADER = [
    "# Speed and memory",
    "",
    "Written by `make bench`. Machines differ and are noisy: compare figures of one run only.",
    "Whole runs on graphs of the largest real sizes, with time and peak memory of each stage,",
    "stand in [REHEARSAL.md](REHEARSAL.md); packing of the largest graph in",
    "[PACKING_LARGEST.md](PACKING_LARGEST.md).",
    "",
]


def main() -> None:
    """Run every benchmark and write the results."""
    lines = [*HEADER, *stages.report(), "", *inference_chunks.report(), ""]
    lines += [
        *layout_model.report(threads=(1,), rounds=2, further=layout_model.FURTHER),
        "",
        *shipped_model.report(),
        "",
    ]
    lines += [*compiled_block.report(), ""]
    lines += [*tile_inference.report(), ""]
    lines += [*blending.report(), ""]
    lines += [*packing.report(), ""]
    lines += [*statistics_cost.report(), ""]
    lines += [*segment_memory.report(), ""]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU at hand"
    lines.append(f"Measured on {platform.machine()}, {gpu}, revision {revision()}.")
    write_text(RESULTS, "\n".join(lines) + "\n")
    print(RESULTS)  # noqa: T201


if __name__ == "__main__":
    main()
