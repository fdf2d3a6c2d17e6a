"""The kinds of kernel: each one file, named and filled as asked, ending in time."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UsageError
from kernels.build.build import build
from kernels.build.kinds import INFER, KINDS, RUN, Kind, kind_named, train_kind
from tests.kernels.build.test_build import MOUNT, RECIPE, add_data, run_kernel

TRAIN = train_kind("layout:xla:random", 600)


@pytest.mark.parametrize("kind", [RUN, TRAIN, INFER], ids=KINDS)
def test_every_kind_is_one_file_for_older_and_newer_pythons(
    project: Path, tmp_path: Path, kind: Kind
) -> None:
    sources = ["someone/earlier-run"]
    one, two = (
        build("cpu", RECIPE, tmp_path / name, kind=kind, root=project, kernel_sources=sources)
        for name in ("one", "two")
    )
    text = one.script.read_text()
    assert text == two.script.read_text()
    assert one.metadata.read_bytes() == two.metadata.read_bytes()
    for minor in (11, 12):
        tree = ast.parse(text, feature_version=(3, minor))
        compile(tree, str(one.script), "exec")
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else _names(node))
    }
    assert imported <= sys.stdlib_module_names


def _names(node: ast.Import) -> list[str]:
    return [alias.name for alias in node.names]


def test_a_train_kernel_is_named_after_its_collection(project: Path, tmp_path: Path) -> None:
    built = build("cpu", RECIPE, tmp_path / "out", kind=TRAIN, root=project)
    assert built.kernel_id == "fast-or-slow-cpu-train-layout-xla-random"
    text = built.script.read_text()
    assert 'COLLECTION = "layout:xla:random"' in text
    assert 'MAX_MINUTES = float("600")' in text


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("other", None, None), "--kind other: expected one of run, train, infer"),
        (("train", None, None), "pass --collection as well"),
        (("train", "tile:gpu", None), "no such collection"),
        (("train", "tile:xla", 706), "--max-minutes 706: expected more than 0 and at most 705"),
        (("train", "tile:xla", -1), "expected more than 0"),
        (("train", "tile:xla", 0), "--max-minutes 0: expected more than 0"),
        (("run", "tile:xla", None), "--collection: expected only with --kind train"),
        (("infer", "tile:xla", None), "not with --kind infer"),
        (("infer", None, 706), "--max-minutes 706: expected more than 0 and at most 705"),
        (("run", None, 0), "--max-minutes 0: expected more than 0"),
    ],
)
def test_options_of_another_kind_are_wrong_usage(
    asked: tuple[str, str | None, float | None], expected: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        kind_named(*asked)


@pytest.mark.parametrize("kind", ["run", "infer"])
def test_every_kind_stops_itself_when_asked_to(kind: str) -> None:
    assert kind_named(kind, None, None) == {"run": RUN, "infer": INFER}[kind]
    assert RUN.values["@MAX_MINUTES@"] == INFER.values["@MAX_MINUTES@"] == "690"
    assert kind_named(kind, None, 30).values["@MAX_MINUTES@"] == "30"


def test_an_infer_kernel_without_models_is_wrong_usage(project: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing attached holds trained models"):
        build(
            "cpu",
            RECIPE,
            tmp_path / "out",
            kind=INFER,
            root=project,
            dataset_sources=["someone/tpu-wheels"],
        )
    assert not (tmp_path / "out").exists()


def test_the_kernel_runs_on_python_3_12(project: Path, tmp_path: Path) -> None:
    found = [*Path.home().glob(".pyenv/versions/3.12.*/bin/python"), shutil.which("python3.12")]
    works = [
        python
        for python in found
        if python and not subprocess.run([python, "-c", ""], check=False).returncode
    ]
    if not works:
        pytest.skip("no Python 3.12 here")
    built = build("cpu", RECIPE, tmp_path / "out", root=project, required_modules={})
    add_data(tmp_path / "kaggle", MOUNT)
    ended = run_kernel(
        built.script, tmp_path / "kaggle", tmp_path / "elsewhere", python=str(works[0])
    )
    assert ended.returncode == 0, ended.stderr
    assert "kernel: Python 3.12" in ended.stdout


@pytest.mark.parametrize(
    ("pipeline", "finished", "said"),
    [
        ("import time; time.sleep(60)", False, "a step went on beyond its time"),
        ("import sys; sys.stderr.write('out of time at step 3')", False, "not finished: push"),
        ("import sys; sys.stdout.write('model       x\\n')", True, "kernel: done: "),
    ],
)
def test_a_train_kernel_ends_in_time_and_says_whether_all_is_trained(
    project: Path, tmp_path: Path, pipeline: str, finished: bool, said: str
) -> None:
    (project / "pipeline/__main__.py").write_text(pipeline)
    values = {"@COLLECTION@": "tile:xla", "@MAX_MINUTES@": "0.02", "@SAVING_MINUTES@": "0.02"}
    kind = Kind("train", "train", values)
    built = build("cpu", RECIPE, tmp_path / "out", kind=kind, root=project, required_modules={})
    add_data(tmp_path / "kaggle", MOUNT)
    ended = run_kernel(built.script, tmp_path / "kaggle", tmp_path / "elsewhere")
    assert ended.returncode == 0, ended.stderr
    assert said in ended.stdout
    facts = json.loads((tmp_path / "kaggle" / "working" / "kernel.json").read_text())
    assert facts == {
        "kind": "train",
        "collection": "tile:xla",
        "recipe": "configs/cpu.toml",
        "finished": finished,
    }
