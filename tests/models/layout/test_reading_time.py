"""The time of reading a graph of published size anew for a step, with statistics and without."""

import time
from pathlib import Path

import numpy as np
import pytest

from data.graph_store.prepare import prepare
from data.graph_store.stored_graph import read_layout
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import GraphFile
from features.scaling import NodeScaler
from models.graph_task import draw
from models.layout.inputs import layout_inputs

ROUNDS = 5
CONFIGS_PER_STEP = 128


def read_s(file: GraphFile, scaler: NodeScaler, *, with_statistics: bool) -> float:
    """Return the CPU seconds of a read and of the configs of a step, at best."""
    seconds = []
    for seed in range(ROUNDS):
        start = time.process_time()
        inputs = layout_inputs(
            read_layout(file), rule="hops-1", scaler=scaler, with_statistics=with_statistics
        )
        sample = draw(np.random.default_rng(seed), len(inputs.first), CONFIGS_PER_STEP)
        inputs.choices(sample)
        inputs.runtimes(sample)
        if with_statistics:
            inputs.statistics(sample)
        seconds.append(time.process_time() - start)
    return min(seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [
        GraphSize(5_659, 300, 80_000),
        GraphSize(5_659, 450, 100_000),
        GraphSize(21_919, 1_000, 60_000),
    ],
)
def test_statistics_take_little_of_the_time_to_read_a_graph(
    size: GraphSize, scaler: NodeScaler, tmp_path: Path
) -> None:
    (entry,) = prepare([write_sized(tmp_path, size)], tmp_path / "store")
    assert entry.stored is not None
    read_s(entry.stored, scaler, with_statistics=True)  # checks the bytes of the file
    without, with_statistics = (
        read_s(entry.stored, scaler, with_statistics=chosen) for chosen in (False, True)
    )
    assert with_statistics < 2 * without + 0.05, f"{without:.3f} s without statistics"
