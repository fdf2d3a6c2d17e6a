"""Built kernels: their bytes, their metadata, and what is refused before anything is written."""

import ast
import json
import random
import re
from pathlib import Path

import nbformat
import pytest

from common.errors import PipelineError, UsageError
from kernels.build import KINDS, METADATA_FILE, SOURCE_LIMIT_BYTES, Kind, build, kind_named
from tests.fake_kaggle import KEY
from tests.kernels.building.test_script import RECIPE

LONG = kind_named("train", "layout:nlp:default")


@pytest.mark.parametrize("kind", [KINDS["run"], LONG, KINDS["infer"]], ids=KINDS)
def test_every_kind_is_one_file_with_the_same_bytes(
    project: Path, tmp_path: Path, kind: Kind
) -> None:
    one, two, other = (
        build("cpu", table, tmp_path / name, kind=kind, root=project, kernel_sources=["a/models"])
        for name, table in (("1", RECIPE), ("2", RECIPE), ("3", {**RECIPE, "seed": 1}))
    )
    text = one.read_text()
    assert text == two.read_text() != other.read_text()
    metadata = [(path.parent / METADATA_FILE).read_bytes() for path in (one, two)]
    assert metadata[0] == metadata[1]


def test_a_notebook_holds_the_script_cell_by_cell(project: Path, tmp_path: Path) -> None:
    script, one, two = (
        build("cpu", RECIPE, tmp_path / name, root=project, notebook=notebook)
        for name, notebook in (("0", False), ("1", True), ("2", True))
    )
    assert one.read_bytes() == two.read_bytes()
    told = json.loads((one.parent / METADATA_FILE).read_text())
    assert (told["kernel_type"], told["code_file"]) == ("notebook", "fast-or-slow-cpu.ipynb")
    read = nbformat.read(one, as_version=4)
    nbformat.validate(read)
    codes = [cell.source for cell in read.cells if cell.cell_type == "code"]
    assert 'ARCHIVE = """' in codes[0]
    assert all(isinstance(cell["source"], str) for cell in json.loads(one.read_text())["cells"])
    whole = ast.parse(script.read_text()).body[1:]
    assert list(map(ast.dump, ast.parse("\n".join(codes[:-1])).body)) == list(map(ast.dump, whole))


def test_a_script_above_the_limit_is_refused_with_its_size(project: Path, tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(SOURCE_LIMIT_BYTES)  # does not compress
    (project / "features" / "table.gz").write_bytes(noise)
    with pytest.raises(PipelineError) as caught:
        build("cpu", RECIPE, tmp_path / "out", root=project)
    size_bytes = int(re.search(r"the script has (\d+) bytes", str(caught.value))[1])
    assert size_bytes > SOURCE_LIMIT_BYTES * 4 / 3
    assert f"features/table.gz ({SOURCE_LIMIT_BYTES} bytes)" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_credential_in_the_recipe_or_the_metadata_is_not_built_in(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGGLE_KEY", KEY)
    with pytest.raises(PipelineError, match=r"configs/cpu\.toml: holds a Kaggle credential"):
        build("cpu", {"storage": f"sqlite://{KEY}@host"}, tmp_path / "out", root=project)
    with pytest.raises(PipelineError, match=r"kernel-metadata\.json: holds a Kaggle credential"):
        build("cpu", RECIPE, tmp_path / "out", root=project, title=KEY)
    assert not (tmp_path / "out").exists()


def test_a_folder_in_the_way_and_inference_without_models_are_refused(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").touch()
    with pytest.raises(UsageError, match=r"docs: is in the way and no kernel's folder; choose"):
        build("cpu", RECIPE, tmp_path / "docs", root=project)
    assert len(list((tmp_path / "docs").iterdir())) == 1
    built = build("cpu", RECIPE, tmp_path / "out", root=project)
    assert build("cpu", RECIPE, tmp_path / "out", root=project) == built
    with pytest.raises(UsageError, match="nothing attached holds trained models"):
        wheels = ["a/tpu-wheels"]
        build("cpu", RECIPE, built, kind=KINDS["infer"], root=project, dataset_sources=wheels)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("other", None, None), "--kind other: expected one of run, train, infer"),
        (("train", None, None), "--collection: expected with --kind train, and only there"),
        (("train", "tile:xla", 706), "--max-minutes 706: expected more than 0 and at most 705"),
        (("run", "tile:xla", None), "--collection: expected with --kind train, and only there"),
    ],
)
def test_options_of_another_kind_are_wrong_usage(
    asked: tuple[str, str | None, float | None], expected: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        kind_named(*asked)
