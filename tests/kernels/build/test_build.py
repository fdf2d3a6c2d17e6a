"""Built kernels: their bytes, their metadata, and what happens when Kaggle runs one."""

import json
import logging
import os
import random
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from common import settings
from common.errors import PipelineError, UsageError
from kernels.build.archive import PACKAGES, pack
from kernels.build.build import SOURCE_LIMIT_BYTES, build
from kernels.build.kinds import RUN
from kernels.build.script import render_script
from tests.fake_kaggle import KEY
from tests.kernels.conftest import stand_in_pipeline

RECIPE = {"seed": 0, "features": {"prune": "config"}}
MOUNT, OLD_MOUNT = "competitions/predict-ai-model-runtime", "predict-ai-model-runtime"


def run_kernel(
    script: Path, kaggle: Path, elsewhere: Path, *, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run a kernel as Kaggle does: a fresh process, another folder, no project on the path."""
    (kaggle / "working").mkdir(parents=True, exist_ok=True)
    elsewhere.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(elsewhere),
        "PIPELINE_KAGGLE_INPUT": str(kaggle / "input"),
        "PIPELINE_KAGGLE_WORKING": str(kaggle / "working"),
    }
    return subprocess.run(
        [python, str(script)],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def add_data(kaggle: Path, mount: str) -> Path:
    folder = kaggle / "input" / mount
    (folder / "npz").mkdir(parents=True)
    (folder / "npz" / "graph_a.npz").write_bytes(b"")
    return folder


def add_wheel(folder: Path) -> None:
    """Write a wheel that holds one module: the least that pip installs."""
    folder.mkdir(parents=True)
    info = "planted_layers-1.0.dist-info"
    with zipfile.ZipFile(folder / "planted_layers-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("planted_layers.py", "MARKER = 'from the wheel'\n")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: planted-layers\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "planted_layers.py,,\n")


def test_two_builds_are_byte_identical(project: Path, tmp_path: Path) -> None:
    first = build("cpu", RECIPE, tmp_path / "one", root=project)
    second = build("cpu", RECIPE, tmp_path / "two", root=project)
    assert first.script.read_bytes() == second.script.read_bytes()
    assert first.metadata.read_bytes() == second.metadata.read_bytes()
    other = build("cpu", {**RECIPE, "seed": 1}, tmp_path / "three", root=project)
    assert other.script.read_bytes() != first.script.read_bytes()


def test_every_metadata_field_is_written(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        built = build(
            "gnn_tile",
            RECIPE,
            tmp_path / "out",
            root=project,
            dataset_sources=["someone/tpu-wheels"],
            kernel_sources=["someone/earlier-run"],
        )
    assert json.loads(built.metadata.read_text()) == {
        "id": "fast-or-slow-gnn-tile",
        "title": "Fast or slow gnn tile",
        "code_file": "fast-or-slow-gnn-tile.py",
        "language": "python",
        "kernel_type": "script",
        "is_private": True,
        "enable_gpu": True,
        "enable_tpu": False,
        "enable_internet": False,
        "machine_shape": "NvidiaTeslaT4",
        "keywords": [],
        "dataset_sources": ["someone/tpu-wheels"],
        "competition_sources": ["predict-ai-model-runtime"],
        "kernel_sources": ["someone/earlier-run"],
        "model_sources": [],
        "docker_image": None,
        "docker_image_pinning_type": "original",
    }
    assert built.script.name == "fast-or-slow-gnn-tile.py"
    assert built.script_bytes == built.script.stat().st_size
    assert not caplog.records


def test_without_gpu_or_wheels_there_is_no_accelerator_and_a_warning(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        built = build("cpu", RECIPE, tmp_path / "out", root=project, gpu=False)
    metadata = json.loads(built.metadata.read_text())
    assert (metadata["enable_gpu"], metadata["machine_shape"]) == (False, "")
    assert metadata["id"] == "fast-or-slow-cpu"
    assert "torch-geometric" in caplog.text


def test_a_script_above_the_limit_is_refused_with_its_size(project: Path, tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(SOURCE_LIMIT_BYTES)  # does not compress
    (project / "features" / "table.gz").write_bytes(noise)
    with pytest.raises(PipelineError) as caught:
        build("cpu", RECIPE, tmp_path / "out", root=project)
    size_bytes = int(re.search(r"the script has (\d+) bytes", str(caught.value))[1])
    assert size_bytes > SOURCE_LIMIT_BYTES * 4 / 3
    assert f"features/table.gz ({SOURCE_LIMIT_BYTES} bytes)" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_credential_in_the_recipe_is_not_built_in(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGGLE_KEY", KEY)
    with pytest.raises(PipelineError, match=r"configs/cpu\.toml: holds a Kaggle credential"):
        build("cpu", {"storage": f"sqlite://{KEY}@host"}, tmp_path / "out", root=project)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../x", "Big", "a b", "", "-a", "a" * 60])
def test_a_name_that_cannot_name_a_kernel_is_wrong_usage(
    project: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(UsageError, match=f"{re.escape(name)}'"):
        build(name, RECIPE, tmp_path / "out", root=project)


def test_a_recipe_that_is_not_toml_is_refused(project: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot be written as TOML"):
        build("cpu", {"seed": None}, tmp_path / "out", root=project)


@pytest.mark.parametrize("mount", [MOUNT, OLD_MOUNT, f"{MOUNT}/npz_all"])
def test_the_kernel_runs_the_recipe_on_the_mounted_data(
    project: Path, tmp_path: Path, mount: str
) -> None:
    built = build("cpu", RECIPE, tmp_path / "out", root=project, required_modules={"json": "json"})
    data = add_data(tmp_path / "kaggle", mount)

    ended = run_kernel(built.script, tmp_path / "kaggle", tmp_path / "elsewhere")

    assert ended.returncode == 0, ended.stderr
    working = tmp_path / "kaggle" / "working"
    rows = (working / "submission.csv").read_text().splitlines()
    assert rows == ["ID,TopConfigs", "tile:xla:graph_a,0;1;2"]
    seen = json.loads((working / "run" / "seen.json").read_text())
    assert (seen["command"], seen["marker"]) == ("run", "embedded")
    assert seen["recipe"] == 'seed = 0\n\n[features]\nprune = "config"\n'
    assert seen["data"] == str(data)
    assert not Path(seen["code"]).exists()  # the unpacked code is cleared away
    assert str(project) not in seen["code"]


def test_this_projects_own_packages_fit_and_import_in_a_kernel(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "raw", "store", "sample")
    root = tmp_path / "project"
    for package in PACKAGES:
        shutil.copytree(settings.ROOT / package, root / package, ignore=ignored)
    for module in ("common/settings.py", "pipeline/cli/console.py"):
        shutil.copyfile(settings.ROOT / module, root / module)
    (root / "pipeline/__main__.py").write_text(
        stand_in_pipeline("kernels.build.script", "_TEMPLATES")
    )
    built = build("cpu", RECIPE, tmp_path / "out", root=root)
    add_data(tmp_path / "kaggle", MOUNT)

    ended = run_kernel(built.script, tmp_path / "kaggle", tmp_path / "elsewhere")

    assert ended.returncode == 0, ended.stderr
    seen = json.loads((tmp_path / "kaggle" / "working" / "run" / "seen.json").read_text())
    assert seen["marker"] == f"{seen['code']}/kernels/templates"


def test_the_new_mount_wins_over_the_old(project: Path, tmp_path: Path) -> None:
    built = build("cpu", RECIPE, tmp_path / "out", root=project, required_modules={})
    add_data(tmp_path / "kaggle", OLD_MOUNT)
    new = add_data(tmp_path / "kaggle", MOUNT)
    assert run_kernel(built.script, tmp_path / "kaggle", tmp_path / "else").returncode == 0
    seen = json.loads((tmp_path / "kaggle" / "working" / "run" / "seen.json").read_text())
    assert seen["data"] == str(new)


def test_without_data_the_kernel_names_where_it_looked(project: Path, tmp_path: Path) -> None:
    built = build("cpu", RECIPE, tmp_path / "out", root=project, required_modules={})
    (tmp_path / "kaggle" / "input" / "some-dataset").mkdir(parents=True)
    ended = run_kernel(built.script, tmp_path / "kaggle", tmp_path / "elsewhere")
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    for named in (MOUNT, OLD_MOUNT, "attached: some-dataset"):
        assert named in ended.stderr


def test_a_failing_pipeline_fails_the_kernel(project: Path, tmp_path: Path) -> None:
    (project / "pipeline/__main__.py").write_text("raise SystemExit(3)")
    built = build("cpu", RECIPE, tmp_path / "out", root=project, required_modules={})
    add_data(tmp_path / "kaggle", MOUNT)
    ended = run_kernel(built.script, tmp_path / "kaggle", tmp_path / "elsewhere")
    assert ended.returncode == 1
    assert "exit code 3" in ended.stderr
    assert not (tmp_path / "kaggle" / "working" / "submission.csv").exists()


@pytest.mark.parametrize("place", ["layers-wheels", "datasets/someone/layers-wheels"])
def test_a_module_that_the_image_lacks_comes_from_attached_wheels(
    project: Path, tmp_path: Path, place: str
) -> None:
    (project / "features" / "marker.py").write_text("from planted_layers import MARKER\n")
    required = {"planted_layers": "planted-layers", "json": "json"}
    built = build("cpu", RECIPE, tmp_path / "out", root=project, required_modules=required)
    kaggle = tmp_path / "kaggle"
    add_data(kaggle, MOUNT)

    lacking = run_kernel(built.script, kaggle, tmp_path / "elsewhere")
    assert lacking.returncode == 1
    assert "the image lacks planted-layers; attach a dataset named …-wheels" in lacking.stderr

    add_wheel(kaggle / "input" / place)
    ended = run_kernel(built.script, kaggle, tmp_path / "elsewhere")
    assert ended.returncode == 0, ended.stderr
    seen = json.loads((kaggle / "working" / "run" / "seen.json").read_text())
    assert seen["marker"] == "from the wheel"


@pytest.mark.parametrize("member", ["../escaped.py", "configs/../../escaped.py", "{absolute}"])
def test_an_archive_member_outside_its_folder_is_refused(tmp_path: Path, member: str) -> None:
    name = member.format(absolute=tmp_path / "escaped.py")
    script = tmp_path / "kernel.py"
    script.write_text(render_script(RUN, pack({name: b"planted"}), "configs/cpu.toml", {}))
    add_data(tmp_path / "kaggle", MOUNT)
    ended = run_kernel(script, tmp_path / "kaggle", tmp_path / "elsewhere")
    assert ended.returncode == 1
    assert "leaves its folder; refused" in ended.stderr
    assert not (tmp_path / "escaped.py").exists()


def test_a_damaged_archive_is_refused(project: Path, tmp_path: Path) -> None:
    built = build("cpu", RECIPE, tmp_path / "out", root=project, required_modules={})
    text = built.script.read_text()
    middle = text.rindex('ARCHIVE = """') + 200
    other = "B" if text[middle] != "B" else "C"
    built.script.write_text(text[:middle] + other + text[middle + 1 :])
    ended = run_kernel(built.script, tmp_path / "kaggle", tmp_path / "elsewhere")
    assert ended.returncode == 1
    assert "archive is damaged" in ended.stderr
