"""Search, measure and write layout graphs, chunk by chunk, so that any size fits in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.npz.write import Streamed, write_npz
from data.synthetic.layout_cost import LayoutCost, layout_cost
from data.synthetic.measure import generator, log_uniform, measured_ns
from data.synthetic.networks import LayoutProgram, build_program
from data.synthetic.plan import FAMILIES
from data.synthetic.search import SearchSpace, genetic_genomes, random_genomes, search_space

# Relative measurement noise: log-uniform between these, drawn once per graph.
NOISE = (0.001, 0.005)
CHUNK_BYTES = 16 * 2**20

Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Searched:
    """A program and the configs that a search measured on it, as genomes (c, 3 g)."""

    program: LayoutProgram
    space: SearchSpace
    cost: LayoutCost
    genomes: NDArray[np.int8]
    noise: float

    def chunks(self) -> Iterator[slice]:
        """Cut the configs into chunks of about 16 MB of float32 values."""
        yield from _chunks(len(self.genomes), self.space)


def search_configs(
    program: LayoutProgram, *, search: str, n_configs: int, seed: int, name: str
) -> Searched:
    """Search `n_configs` configs of `program`, by "random" or "default" (genetic) search.

    Both searches of a graph share its search space and noise level, which `seed` and `name` fix.
    """
    shared = generator(seed, "space", name)
    space = search_space(program, shared)
    noise = log_uniform(shared, NOISE)
    cost = layout_cost(program)
    rng = generator(seed, "search", search, name)
    if search == "random":
        genomes = random_genomes(space, n_configs, rng)
    else:

        def measure(genomes: NDArray[np.int8]) -> NDArray[np.float64]:
            rows = _chunks(len(genomes), space)
            return np.concatenate([cost.runtime_ns(space.configs(genomes[r])) for r in rows])

        genomes = rng.permutation(genetic_genomes(space, n_configs, measure, rng))
    return Searched(program, space, cost, genomes, noise)


def _chunks(n_configs: int, space: SearchSpace) -> Iterator[slice]:
    step = max(1, CHUNK_BYTES // (4 * 18 * len(space.group_of)))
    for start in range(0, n_configs, step):
        yield slice(start, min(start + step, n_configs))


def write_searched(
    path: Path,
    searched: Searched,
    *,
    rng: np.random.Generator,
    hide: bool,
    report: Report | None = None,
) -> NDArray[np.int64]:
    """Measure and write one layout graph; return the runtimes (c,) in ns.

    Args:
        rng: draws the measurement noise.
        hide: store all runtimes as 0, as in the test split.
        report: called with (configs written, configs in all) as they are written.

    Raises:
        PipelineError: the file cannot be written.
    """
    program = searched.program
    runtime_ns = np.zeros(len(searched.genomes), np.int64)

    def measured_configs() -> Iterator[NDArray[np.int8]]:
        for rows in searched.chunks():
            configs = searched.space.configs(searched.genomes[rows])
            runtime_ns[rows] = measured_ns(searched.cost.runtime_ns(configs), searched.noise, rng)
            yield configs
            if report is not None:
                report(rows.stop, len(runtime_ns))

    shape = (len(runtime_ns), len(program.node_config_ids), 18)
    write_npz(
        path,
        {
            "node_feat": program.node_feat,
            "node_opcode": program.node_opcode,
            "edge_index": program.edge_index,
            "node_config_feat": Streamed(shape, np.float32, measured_configs),
            "node_config_ids": program.node_config_ids,
            "config_runtime": lambda: np.zeros_like(runtime_ns) if hide else runtime_ns,
            "node_splits": program.node_splits,
        },
    )
    return runtime_ns


def write_layout_graph(
    path: Path,
    *,
    n_nodes: int,
    n_configurable: int,
    n_configs: int,
    seed: int = 0,
    search: str = "random",
    report: Report | None = None,
) -> None:
    """Write one labelled transformer graph of exactly the given size.

    Configs are made, measured and compressed in chunks, so memory does not grow with them beyond
    about one byte per gene and 8 bytes per runtime.

    Args:
        report: called with (configs written, configs in all) as they are written.

    Raises:
        PipelineError: the nodes are too few for that many configurable ones, or the file cannot
            be written.
    """
    program = sized_transformer(n_nodes=n_nodes, n_configurable=n_configurable)
    searched = search_configs(
        program, search=search, n_configs=n_configs, seed=seed, name=path.stem
    )
    rng = generator(seed, "noise", path.stem)
    write_searched(path, searched, rng=rng, hide=False, report=report)


def sized_transformer(*, n_nodes: int, n_configurable: int) -> LayoutProgram:
    """Build a transformer of exactly this many nodes, as shallow as its configurable ones allow.

    Raises:
        PipelineError: the nodes are too few for that many configurable ones.
    """
    family = FAMILIES["nlp", "train"][0]
    one, two = (len(build_program(family, depth=d, batch=8).node_config_ids) for d in (1, 2))
    depth = 1 + max(0, -(-(n_configurable - one) // (two - one)))
    return build_program(
        family, depth=depth, batch=8, n_nodes=n_nodes, n_configurable=n_configurable
    )
