"""Weights on disk: they come back, and equal ones are equal bytes."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from common.errors import PipelineError
from models.training.weights import WEIGHTS, load_network, load_tensors, save_tensors

TENSORS = {
    "model.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4).T,  # not contiguous
    "optimiser.step.weight": torch.tensor(3.0),
    "model.half": torch.ones(2, dtype=torch.bfloat16),
}
FACTS = {"scaling": "log1p", "step": 3}


def test_tensors_and_facts_come_back_and_equal_ones_are_equal_bytes(tmp_path: Path) -> None:
    written = set()
    for number in range(8):  # the library's own order of header keys changes from call to call
        path = tmp_path / f"{number}.safetensors"
        save_tensors(path, TENSORS, FACTS)
        written.add(path.read_bytes())
        tensors, facts = load_tensors(path)
        assert facts == FACTS
        assert tensors.keys() == TENSORS.keys()
        assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert len(written) == 1
    (tmp_path / "new").touch()
    assert {file.stat().st_mode for file in tmp_path.iterdir()} == {path.stat().st_mode}
    assert len(list(tmp_path.iterdir())) == 8 + 1  # no temporary file stays


BROKEN_FACTS = ("[]", "1", "null", "{", "[" * 100_000)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"not safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "),
        *(save({"model.weight": torch.zeros(2)}, {"facts": facts}) for facts in BROKEN_FACTS),
    ],
    ids=lambda content: content[-20:].hex(),
)
def test_damaged_weights_give_one_line_with_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(PipelineError, match=r"model\.safetensors: not a weights file") as caught:
        load_tensors(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("scaling", "width"), [("log1p", 3), ("other", 140), ([], 140)])
def test_weights_that_do_not_say_how_nodes_are_scaled_are_refused(
    tmp_path: Path, scaling: object, width: int
) -> None:
    tensors = {"nodes.shift": torch.zeros(width), "nodes.factor": torch.zeros(width)}
    save_tensors(tmp_path / WEIGHTS, tensors, {"scaling": scaling})
    with pytest.raises(PipelineError, match=f"{WEIGHTS}: does not say how nodes are scaled"):
        load_network(torch.nn.ReLU(), tmp_path)
