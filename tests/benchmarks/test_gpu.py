"""The benchmark of a GPU, without one: its workloads, and the page."""

import pytest
import torch

from benchmarks import gpu
from common.errors import PipelineError
from pipeline.planning.synthetic_graphs import GraphSize


@pytest.mark.parametrize("name", gpu.WORKLOADS)
def test_a_workload_has_the_graphs_of_one_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GRAPH", GraphSize(300, 500, 80, 200))
    graphs = gpu.WORKLOADS[name].build().graphs
    assert len(graphs) == {"baseline_gcn": 8, "late_fusion_sage": 32, "early_fusion_sage": 16}.get(
        name, 1
    )


def test_the_page_has_a_row_for_each_network() -> None:
    text = gpu.page("NVIDIA H100", [["tgraph", "54.70", "9.00", "400.00"]])
    assert "On NVIDIA H100" in text and "| tgraph | 54.70 | 9.00 | 400.00 |" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA GPU")
def test_without_a_gpu_it_ends_with_one_line() -> None:
    with pytest.raises(PipelineError, match="torch finds no CUDA GPU"):
        gpu.main()
