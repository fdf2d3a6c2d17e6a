"""Built kernels: bytes, metadata, embedded files, and errors before any file is written."""

import io
import json
import os
import random
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from common.errors import PipelineError, UsageError
from common.reproducibility import revision
from common.settings import ROOT
from kernels.build import (
    KINDS,
    METADATA_FILE,
    SOURCE_LIMIT_BYTES,
    Kind,
    build,
    collect_files,
    custom_packages,
    kind_named,
    pack,
)
from tests.kernels.conftest import contents
from tests.kernels.test_script import RECIPE
from tests.support.command_line import call
from tests.support.fake_kaggle import KEY

LONG = kind_named("train", "layout:nlp:default")


@pytest.mark.parametrize("kind", [KINDS["run"], LONG, KINDS["infer"]], ids=KINDS)
def test_equal_input_gives_the_same_bytes_of_every_kind(
    project: Path, tmp_path: Path, kind: Kind
) -> None:
    one, two, other = (
        build("cpu", table, tmp_path / name, kind=kind, root=project, kernel_sources=["a/models"])
        for name, table in (("1", RECIPE), ("2", RECIPE), ("3", {**RECIPE, "seed": 1}))
    )
    assert contents(one.parent) == contents(two.parent)
    assert one.read_text() != other.read_text()
    packed = pack(collect_files(project))
    for path in project.rglob("*.py"):
        os.utime(path, (1, 1))
    assert pack(dict(reversed(collect_files(project).items()))) == packed


@pytest.mark.parametrize(
    ("words", "gpu"), [(("cpu",), True), (("trees",), False), (("trees", "--gpu"), True)]
)
def test_gpu_is_asked_for_if_the_recipe_has_a_network(
    tmp_path: Path, words: tuple[str, ...], gpu: bool
) -> None:
    call("kernel", "build", "--out", tmp_path, "--recipe", *words)
    assert json.loads((tmp_path / METADATA_FILE).read_text())["enable_gpu"] is gpu


def test_script_above_the_limit_is_refused_with_its_size(project: Path, tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(SOURCE_LIMIT_BYTES)  # does not compress
    (project / "features" / "table.gz").write_bytes(noise)
    with pytest.raises(PipelineError) as caught:
        build("cpu", RECIPE, tmp_path / "out", root=project)
    size_bytes = int(re.search(r"the script has (\d+) bytes", str(caught.value))[1])
    assert size_bytes > SOURCE_LIMIT_BYTES * 4 / 3
    assert f"file is features/table.gz ({SOURCE_LIMIT_BYTES} bytes)" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_credential_in_recipe_or_metadata_is_refused(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGGLE_KEY", KEY)
    with pytest.raises(PipelineError, match=r"configs/cpu\.toml: contains a Kaggle credential"):
        build("cpu", {"storage": f"sqlite://{KEY}@host"}, tmp_path / "out", root=project)
    with pytest.raises(PipelineError, match=r"kernel-metadata\.json: contains a Kaggle credential"):
        build("cpu", RECIPE, tmp_path / "out", root=project, title=KEY)
    assert not (tmp_path / "out").exists()


def test_only_a_folder_of_an_earlier_kernel_is_replaced(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(2):
        build("cpu", RECIPE, tmp_path / "out", root=project)
    replaced = f"note: {tmp_path / 'out'}: replaces an earlier kernel"
    assert caplog.messages.count(replaced) == 1
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").touch()
    with pytest.raises(UsageError, match=r"docs: is not empty and no kernel folder; choose"):
        build("cpu", RECIPE, tmp_path / "docs", root=project)
    assert len(list((tmp_path / "docs").iterdir())) == 1


def test_inference_without_attached_models_is_refused(project: Path, tmp_path: Path) -> None:
    sources = {"dataset_sources": ["a/tpu-wheels"]}
    with pytest.raises(UsageError, match="no attached source has trained models"):
        build("cpu", RECIPE, tmp_path, kind=KINDS["infer"], root=project, **sources)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("other", None, None), "--kind other: expected one of run, train, infer"),
        (("train", None, None), "--collection: expected with --kind train, and only there"),
        (("train", "tile:xla", 706), "--max-minutes 706: expected more than 0 and at most 705"),
        (("run", "tile:xla", None), "--collection: expected with --kind train, and only there"),
    ],
)
def test_option_of_another_kind_is_wrong_usage(
    asked: tuple[str, str | None, float | None], expected: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        kind_named(*asked)


def test_data_caches_and_hidden_files_are_not_embedded(project: Path, tmp_path: Path) -> None:
    left_out = [
        "data/sample/npz/a.npz",
        "data/raw/settings.py",
        "features/__pycache__/marker.pyc",
        "features/.hidden/x.py",
        "features/dump.bin",
        "configs/kaggle.json",
        "tests/test_x.py",
        "benchmarks/speed.py",
        "runs/1/report.json",
    ]
    kept = ["configs/cpu.toml", "configs/tune/tile.toml", "submissions/report.html", "data/raw.py"]
    for name in (*left_out, *kept):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    names = set(collect_files(project))
    assert names.isdisjoint(left_out)
    assert names >= {*kept, "pipeline/__main__.py", "common/settings.py", "features/marker.py"}
    with pytest.raises(PipelineError, match=r"pipeline/__main__\.py: no such file"):
        collect_files(tmp_path)


@pytest.mark.parametrize("name", ["link.py", "folder"])
def test_link_among_the_code_is_refused(project: Path, name: str) -> None:
    link = project / "models" / name
    link.symlink_to(ROOT / "common" if name == "folder" else ROOT / "common" / "errors.py")
    with pytest.raises(UsageError, match=f"{name}: is a link; a kernel embeds no links"):
        collect_files(project)


def test_revision_is_embedded_and_found_after_unpacking(project: Path, tmp_path: Path) -> None:
    (project / "docs/results").mkdir(parents=True)
    (project / "docs/results/page.md").write_text("first\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in ("init --quiet", "add .", "commit --quiet -m first"):
        subprocess.run(["git", "-C", project, *who, *words.split()], check=True)
    committed = revision(project)
    assert committed
    (project / "REVISION").write_text("somebody-else's\n")  # in a checkout it says nothing
    (project / "docs/results/page.md").write_text("second\n")
    assert revision(project) == committed
    (project / "common/settings.py").write_text("changed = 1\n")
    files = collect_files(project)
    assert files["REVISION"].decode() == f"{committed}+changed\n"
    with zipfile.ZipFile(io.BytesIO(pack(files))) as archive:
        archive.extractall(tmp_path / "unpacked")
    assert revision(tmp_path / "unpacked") == f"{committed}+changed"
    assert collect_files(tmp_path / "unpacked")["REVISION"] == files["REVISION"]


@pytest.mark.parametrize("is_on_path", [True, False])
def test_packages_of_custom_models_are_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on_path: bool
) -> None:
    package = tmp_path / "planted_models"
    (package / "deep" / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "deep/gat.py", "deep/__pycache__/gat.pyc", "weights.bin", ".x.py"):
        (package / name).write_text(name)
    (tmp_path / "planted_single.py").write_text("single")
    if is_on_path:
        monkeypatch.syspath_prepend(tmp_path)
    beside = Path("elsewhere") if is_on_path else tmp_path
    places = ["planted_models.deep.gat:Gat", "planted_single:One", "models.layout.network:Mine"]
    assert custom_packages(places, beside) == {
        "planted_models/__init__.py": b"__init__.py",
        "planted_models/deep/gat.py": b"deep/gat.py",
        "planted_single.py": b"single",
    }
    with pytest.raises(UsageError, match="model package 'planted_nothing': is neither on"):
        custom_packages(["planted_nothing.gat:Gat"], tmp_path)
