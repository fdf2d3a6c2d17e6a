"""A graph to rank, with what its file says beside the arrays: instruction names, kernel, runs.

n nodes, c configs, k configurable nodes.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from data.collect.layouts.candidates import candidate_configs
from data.collect.layouts.module import nodes_at
from data.graphs.graph import N_LAYOUT_VALUES, Graph, LayoutGraph, TileGraph
from data.graphs.node_columns import RANK_MAX
from data.graphs.node_layouts import tensor_ranks
from data.hlo.opcodes import OPCODE_NAMES
from data.hlo.programs import HloProgram
from data.tree import Collection

MOST_CANDIDATE_BYTES = 2 << 30


@dataclass(frozen=True)
class NamedGraph:
    """One program or kernel whose configs can be ranked.

    Attributes:
        graph: nodes, edges and configs, as the models read them.
        collection: the graph's, where its folders or the caller tell; else None.
        program: the HLO program it was made of; None of an npz file.
        run_numbers: (c,) int64 which of the file's runs each config is; None where configs are no
            runs.
    """

    graph: Graph
    collection: Collection | None = None
    program: HloProgram | None = None
    run_numbers: NDArray[np.int64] | None = None

    @property
    def kind(self) -> str:
        """Return "layout" or "tile"."""
        return "tile" if isinstance(self.graph, TileGraph) else "layout"

    @property
    def path(self) -> Path:
        """Return the file that it was read from."""
        return self.graph.file.path

    @property
    def name(self) -> str:
        """Return the program's name: its file's stem, and a kernel's fingerprint."""
        return self.graph.file.name

    @property
    def instruction_names(self) -> tuple[str, ...] | None:
        """Return the names of the n instructions; None where the file has none, as in npz."""
        return self.program.graph.instruction_names if self.program else None

    def opcode(self, node: int) -> str:
        """Return the operation of a node, such as "convolution"."""
        number = int(self.graph.node_opcode[node])
        return OPCODE_NAMES[number - 1] if 0 < number <= len(OPCODE_NAMES) else "unknown"

    @cached_property
    def tensor_ranks(self) -> NDArray[np.int64]:
        """Return (k, 3) int64 ranks of output, input and kernel of each configurable node.

        6, the most that there is, where nothing tells: an npz file tells the output's alone.
        """
        assert isinstance(self.graph, LayoutGraph)
        positions = self.graph.node_config_ids
        ranks = np.full((len(positions), 3), RANK_MAX, np.int64)
        ranks[:, 0] = tensor_ranks(self.graph.node_feat)[positions]
        if self.program:
            for row, node in zip(
                ranks, nodes_at(self.program.module, positions.tolist()), strict=True
            ):
                known = [len(shape) for shape in node.shapes[:3]]
                row[: len(known)] = known
        return ranks

    def holding(self, graph: Graph) -> "NamedGraph":
        """Return the same program with the configs of `graph`, which are no runs of its file."""
        return replace(self, graph=graph, run_numbers=None)

    def candidates(self, n_configs: int, *, seed: int = 0) -> NDArray[np.int8]:
        """Draw distinct random layout configs; config 0 leaves all to the compiler.

        Returns:
            (c, k, 18) int8, c at most `n_configs`, for `rank`.

        Raises:
            UsageError: the configs are tiles, an npz file does not tell what layouts are legal, a
                negative seed, or a number that is not above 0 or whose configs take over 2 GiB.
        """
        if self.program is None or not isinstance(self.graph, LayoutGraph):
            raise UsageError(
                f"{self.path}: candidates are made for layouts, from an HLO module; this file "
                f"{'is an npz' if self.program is None else 'holds tiles'}; rank its own configs"
            )
        most = MOST_CANDIDATE_BYTES // (N_LAYOUT_VALUES * max(1, len(self.graph.node_config_ids)))
        if not 1 <= n_configs <= most:
            raise UsageError(
                f"{self.path}: {n_configs} candidates; expected 1..{most} configs of "
                f"{len(self.graph.node_config_ids)} nodes"
            )
        if seed < 0:
            raise UsageError(f"seed {seed}: expected 0 or more")
        nodes = nodes_at(self.program.module, self.graph.node_config_ids.tolist())
        return candidate_configs(nodes, n_configs, seed=seed)
