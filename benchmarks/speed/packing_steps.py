"""Ways to read one layout file, each measured in a process of its own.

`python -m benchmarks.speed.packing_steps STEP FILE OUT` runs one and prints what it took, as JSON.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.speed.plain_steps import load, plain_steps
from data.graph_store.compression import block_rows, pack_block
from data.graph_store.prepare import keep_freed_memory
from data.graph_store.prepare import prepare as prepare_files
from data.npz.inflate import Inflated
from data.npz.read import Archive
from data.npz.zip_index import read_index
from data.packing.config_encoder import ConfigEncoder
from data.packing.configs import PackedConfigs, packed
from data.packing.npz_graphs import CONFIG_CHUNK_BYTES, encode_configs
from data.read import read_layout
from data.tree import GraphFile, file_from_path

CONFIGS = "node_config_feat"
N_ROWS = 128  # about what a training step takes
N_READS = 21


@dataclass(frozen=True)
class Cost:
    """What one run of a step took.

    Attributes:
        wall_s: seconds on the clock, without starting and importing.
        cpu_s: seconds of all threads, in user and kernel mode.
        peak_mib: most memory of the whole process.
        bytes_out: what is kept, in memory or in a file.
    """

    wall_s: float
    cpu_s: float
    peak_mib: float
    bytes_out: int


def inflate(path: Path, out: Path) -> int:
    """Inflate every array once and check its checksum, and nothing else."""
    with path.open("rb") as raw:
        for member in read_index(path).values():
            stream = Inflated(raw, member)
            while stream.read(CONFIG_CHUNK_BYTES):
                pass
            stream.finish()
    return 0


def pack_configs(path: Path) -> PackedConfigs:
    """Pack a file's configs in memory."""
    with Archive(path) as archive:
        header = archive.header(CONFIGS, dtype=np.float32, shape=(None, None, 18))
        n_configs, n_configurable, _ = header.shape
        with ConfigEncoder(n_configurable) as spool:
            encode_configs(archive, n_configs, spool)
            return packed(spool)


def pack(path: Path, out: Path) -> int:
    """Pack the configs: both passes, to indices and hashes in memory."""
    configs = pack_configs(path)
    return int(configs.indices.nbytes + configs.hashes.nbytes)


def prepare(path: Path, out: Path) -> int:
    """Check and pack the whole file into a store."""
    return stored(path, out).path.stat().st_size


def stored(path: Path, out: Path) -> GraphFile:
    """Return a file's graph in a store below `out`."""
    (entry,) = prepare_files([file_from_path(path)], out)
    assert entry.stored is not None, entry.error
    return entry.stored


def load_all(path: Path, out: Path) -> int:
    """Load every array with np.load."""
    return sum(array.nbytes for array in load(path).values())


def winners(path: Path, out: Path) -> int:
    """Prepare the whole file as the winners did."""
    plain_steps(path, out / "winners.npz")
    return (out / "winners.npz").stat().st_size


# In the order of the table. A step takes the file and an empty folder, and returns the bytes kept.
STEPS: dict[str, Callable[[Path, Path], int]] = {
    "inflate": inflate,
    "pack": pack,
    "prepare": prepare,
    "load": load_all,
    "winners": winners,
}


def cost_of(step: Callable[[Path, Path], int], path: Path, out: Path) -> Cost:
    """Run `step` once."""
    keep_freed_memory()
    np.random.default_rng(np.unique(np.zeros(1)).size)  # imports what numpy leaves until then
    cpu, wall = time.process_time(), time.perf_counter()
    bytes_out = step(path, out)
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return Cost(wall_s, cpu_s, peak_mib(), bytes_out)


def peak_mib() -> float:
    """Return this process's peak memory.

    getrusage would count its parent's before the exec as well.
    """
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


def row_reads_s(path: Path, out: Path) -> list[float]:
    """Return the seconds of reads of random configs from a store, without the first."""
    configs = read_layout(stored(path, out)).configs
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(N_READS):
        index = rng.choice(configs.n_configs, min(N_ROWS, configs.n_configs), replace=False)
        start = time.perf_counter()
        configs.rows(index)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def config_bytes(path: Path, out: Path) -> dict[str, int]:
    """Return what a stored graph's configs take: mapped as they are, and archived."""
    indices = pack_configs(path).indices
    width = indices[0].nbytes
    step = block_rows(width)
    blocks = (indices[start : start + step].tobytes() for start in range(0, len(indices), step))
    return {"mapped": indices.nbytes, "archived": sum(len(pack_block(b, width)[1]) for b in blocks)}


# What is not timed: taken by "NAME FILE OUT" as steps are.
FACTS: dict[str, Callable[[Path, Path], object]] = {
    "rows": row_reads_s,
    "config_bytes": config_bytes,
}


def main() -> None:
    """Run the step or find out the fact that is named; print a line of JSON."""
    name, path, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    fact = FACTS.get(name)
    found = fact(path, out) if fact else asdict(cost_of(STEPS[name], path, out))
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
