"""Modules as JAX gives them; skipped where jax, an optional extra, is not installed."""

from pathlib import Path

import numpy as np
import pytest

from data.graphs.node_columns import OPCODES
from data.hlo.write import featurize_files


def test_a_compiled_function_becomes_a_graph(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")

    def step(weights: np.ndarray, batch: np.ndarray) -> np.ndarray:
        return jax.numpy.tanh(batch @ weights).sum(axis=0)

    arguments = np.ones((32, 8), np.float32), np.ones((4, 32), np.float32)
    compiled = jax.jit(step).lower(*arguments).compile()
    module = compiled.runtime_executable().hlo_modules()[0]
    path = tmp_path / "step.pb"
    path.write_bytes(module.as_serialized_hlo_module_proto())
    [written] = featurize_files([path], tmp_path)
    assert written.kind == "module"
    with np.load(written.path) as arrays:
        opcodes = arrays["node_opcode"].tolist()
        parameters = arrays["node_feat"][arrays["node_opcode"] == OPCODES["parameter"]]
        edges = arrays["edge_index"]
    assert OPCODES["dot"] in opcodes or OPCODES["fusion"] in opcodes
    assert {(4.0, 32.0), (32.0, 8.0)} <= {tuple(row[21:23]) for row in parameters}
    assert (edges[:, 0] > edges[:, 1]).all()
