"""A dumped module, its nodes and their options."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.collect.layouts.module import ConfigurableNode, DumpedModule
from data.collect.layouts.options import node_groups, node_options
from data.collect.layouts.realise import N_VALUES, GraphArrays, ProgramSource, check_config
from data.hlo import featurize_module


class Runnable(Protocol):
    """A compiled program with its arguments."""

    def run(self) -> None:
        """Run once and wait for the end."""

    def outputs(self) -> list[NDArray[np.generic]]:
        """Run once and return the flat outputs."""


Realise = Callable[[NDArray[np.int8]], Runnable]  # from a config (k, 18) to what runs


class ModuleProgram:
    """A program whose k configurable nodes are instructions of its dumped module.

    It is a `data.collect.layouts.realise.LayoutProgram`.
    """

    def __init__(
        self,
        source: ProgramSource,
        dumped: DumpedModule,
        nodes: Sequence[ConfigurableNode],
        realise: Realise,
    ) -> None:
        """Take the nodes' options and the module's graph.

        Raises:
            PipelineError: there is no configurable node, or the graph does not fit the format.
        """
        if not nodes:
            raise PipelineError(
                f"{source.name}: has no convolution, dot or reshape left after simplification; "
                "expected at least one"
            )
        self.name = source.name
        self.family = source.family
        self.dumped = dumped
        self._realise = realise
        self.options: Sequence[NDArray[np.int8]] = [node_options(node) for node in nodes]
        self.groups = node_groups(nodes)
        self.graph = _graph_arrays(dumped, [node.position for node in nodes])

    @property
    def default(self) -> NDArray[np.int8]:
        """Return the (k, 18) int8 config that leaves every choice to the compiler: all -1."""
        return np.full((len(self.options), N_VALUES), -1, np.int8)

    def compile(self, config: NDArray[np.int8]) -> Callable[[], None]:
        """Compile under `config` (k, 18); calling the result runs it once and waits for its end.

        It has run once before it is returned, so that nothing is set up while it is timed.

        Raises:
            CompileRefused: the compiler refuses the config.
            PipelineError: the config is not made of this program's options.
        """
        check_config(self, config)
        executable = self._realise(config)
        executable.run()
        return executable.run

    def outputs(self, config: NDArray[np.int8]) -> list[NDArray[np.generic]]:
        """Run under `config` (k, 18) and return the flat outputs in their logical shapes.

        Raises:
            CompileRefused: the compiler refuses the config.
            PipelineError: the config is not made of this program's options.
        """
        check_config(self, config)
        return self._realise(config).outputs()


def _graph_arrays(dumped: DumpedModule, positions: list[int]) -> GraphArrays:
    """Featurise the module."""
    graph = featurize_module(dumped.message, source=dumped.name)
    return {
        "node_feat": graph.node_feat,
        "node_opcode": graph.node_opcode,
        "edge_index": graph.edge_index,
        "node_splits": graph.node_splits,
        "node_config_ids": np.array(positions, np.int64),
    }
