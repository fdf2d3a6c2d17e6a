"""Power laws: evaluated, fitted, read."""

from pathlib import Path

import pytest

from common.errors import PipelineError
from common.settings import ROOT
from pipeline.planning.laws import PowerLaw, fit_law, read_laws


def test_a_fit_finds_the_law_behind_exact_measurements() -> None:
    law = PowerLaw(0.02, {"nodes": 1.1, "configs": 0.9})
    assert law(nodes=4, configs=9, hidden=1000) == pytest.approx(0.02 * 4**1.1 * 9**0.9)
    sizes = [{"nodes": n, "configs": c} for n, c in ((10, 10), (20, 10), (10, 50), (7, 3))]
    found = fit_law(sizes, [law(**row) for row in sizes], ["nodes", "configs"])
    assert found.coefficient == pytest.approx(0.02)
    assert found.exponents == pytest.approx(law.exponents)


def test_sizes_that_grow_together_are_refused() -> None:
    sizes = [{"nodes": n, "edges": 2 * n} for n in (1, 10, 100)]
    with pytest.raises(ValueError, match="do not tell nodes, edges apart"):
        fit_law(sizes, [1.0, 2.0, 3.0], ["nodes", "edges"])


def test_the_laws_of_the_rehearsal_can_be_read() -> None:
    laws = read_laws(ROOT / "benchmarks" / "rehearsal.json")
    assert laws.seconds["step cross_config_sage"].exponents.keys() == {
        "kept",
        "configs_per_step",
        "hidden",
    }
    assert laws.libraries_mib > 0


@pytest.mark.parametrize("content", ["{", "[]", '{"laws": {"seconds": {"a": 1}}}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "laws.json"
    path.write_text(content)
    with pytest.raises(PipelineError, match=r"laws.json: cannot be read.*make rehearsal"):
        read_laws(path)
