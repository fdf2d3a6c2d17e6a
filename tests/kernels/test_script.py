"""Kernels on Kaggle: data, wheels, time limits, and versions that resume earlier versions."""

import json
import os
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from data.tree import COLLECTIONS
from kernels.build import KINDS, Kind, build, kind_named
from kernels.datasets import write_weights
from models.config.recipe import Recipe, load_recipe
from tests.kernels.conftest import run_script, started_script, write_wheel
from tests.support.command_line import call

RECIPE = {"seed": 0, "features": {"prune": "config"}}
MOUNT, OLD_MOUNT = "competitions/predict-ai-model-runtime", "predict-ai-model-runtime"
TILE = "tile:xla"
TRAIN = kind_named("train", TILE)
# A run that takes two calls; the first one ends out of time.
TWO_CALLS = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
(out / "models" / "a").mkdir(parents=True, exist_ok=True)
calls = out / "models" / "a" / "calls.txt"
with calls.open("a") as file:
    file.write("x")
(out / "config.toml").write_text("")
(out / ".lock").write_text("")
(out / "seen.json").write_text(json.dumps(sys.argv[1:]))
if calls.read_text() == "xx":
    (out / "submission.csv").write_text("ID,TopConfigs")
    (out / "DONE").write_text("done")
else:
    sys.stdout.write("model       x\\n")
    sys.stderr.write("out of time")
"""
# The first call waits for a signal, and prints its name.
WAITS = (
    TWO_CALLS
    + """
import os, signal, time
def stop(number, _):
    sys.exit(f"error: stopped by {signal.Signals(number).name}")
signal.signal(signal.SIGTERM, stop)
if not (out / "DONE").exists():
    (out / "pid").write_text(str(os.getpid()))
    time.sleep(60)
"""
)
HANGS = TWO_CALLS + "import time; time.sleep(60)\n"
RunKernel = Callable[..., str]
_NO_SOCKETS = """
import socket
def refuse(*arguments, **options):
    raise OSError("no network in a kernel")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = refuse
"""


class Machine:
    def __init__(
        self,
        project: Path,
        folder: Path,
        kind: Kind,
        pipeline: str = "",
        *,
        mount: str = MOUNT,
    ) -> None:
        self.pipeline, self.kind, self.mount = project / "pipeline/__main__.py", kind, mount
        if pipeline:
            self.pipeline.write_text(pipeline)
        self.script = build(
            *("cpu", RECIPE, folder / "built"),
            kind=kind,
            kernel_sources=["someone/models"],
            root=project,
        )
        self.kaggle, self.elsewhere = folder / "kaggle", folder / "elsewhere"
        self.working = self.kaggle / "working"
        self.environment: dict[str, str] = {}
        self.data = self.kaggle / "input" / mount
        (self.data / "npz").mkdir(parents=True)
        (self.data / "npz" / "graph_a.npz").write_bytes(b"")

    def version(self, *, expect: int = 0) -> str:
        ended = run_script(self.script, self.kaggle, self.elsewhere, **self.environment)
        assert ended.returncode == expect, ended.stderr
        return ended.stdout + ended.stderr

    def attach(self, mount: str, **facts: object) -> Path:
        """Attach the output of the last version, with `facts` written into its kernel.json."""
        target = self.kaggle / "input" / mount
        shutil.copytree(self.working, target)
        noted = json.loads((target / "kernel.json").read_text())
        (target / "kernel.json").write_text(json.dumps(noted | facts))
        return target

    @property
    def facts(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.working / "kernel.json").read_text())
        return found

    def seen(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.working / "run" / "seen.json").read_text())
        return found


@pytest.mark.parametrize("mount", [OLD_MOUNT, f"{MOUNT}/npz_all"])
def test_kernel_runs_the_recipe_on_the_mounted_data(
    project: Path, tmp_path: Path, mount: str
) -> None:
    machine = Machine(project, tmp_path, KINDS["run"], mount=mount)
    machine.version()
    rows = (machine.working / "submission.csv").read_text().splitlines()
    assert rows == ["ID,TopConfigs", "tile:xla:graph_a,0;1;2"]
    seen = machine.seen()
    assert (seen["command"], seen["marker"]) == ("run", "embedded")
    assert seen["recipe"] == 'seed = 0\n\n[features]\nprune = "config"\n'
    assert seen["data"] == str(machine.data)
    assert not Path(seen["code"]).exists()  # the unpacked code is cleared away
    assert str(project) not in seen["code"]


@pytest.mark.parametrize(
    ("mount", "told"),
    [("some-dataset", f"{MOUNT}, attached: some-dataset"), (MOUNT, "ended with code 3")],
)
def test_kernel_fails_without_data_or_if_the_pipeline_fails(
    project: Path, tmp_path: Path, mount: str, told: str
) -> None:
    machine = Machine(project, tmp_path, KINDS["run"], "raise SystemExit(3)", mount=mount)
    log = machine.version(expect=1)
    assert all(part in log for part in told.split(", "))
    assert not (machine.working / "submission.csv").exists()


def test_older_package_is_named_and_replaced_by_a_newer_wheel(
    project: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    write_wheel(tmp_path, "planted_layers", "1.9.1", "OLD = 1\n")
    with zipfile.ZipFile(tmp_path / "planted_layers-1.9.1-py3-none-any.whl") as wheel:
        wheel.extractall(image)
    (project / "features" / "marker.py").write_text("from planted_layers import MARKER\n")
    (project / "requirements.txt").write_text("planted-layers==1.10\n")
    machine = Machine(project, tmp_path, KINDS["run"])
    machine.environment = {"PYTHONPATH": str(image)}
    log = machine.version(expect=1)
    assert "kernel: planted-layers 1.9.1 is older than 1.10, which is tested" in log
    assert "kernel: the image lacks planted-layers: planted_layers.MARKER" in log
    assert "`fast-or-slow kernel wheels --newer planted-layers --out FOLDER` writes it" in log
    wheels = machine.kaggle / "input" / "new-wheels"
    write_wheel(wheels, "planted_layers", "1.9.2", "")
    write_wheel(wheels, "planted_layers", "1.10", "MARKER = 'new'\n")
    assert "is older" not in machine.version()
    assert machine.seen()["marker"] == "new"
    for name in ("1.9.2", "1.10"):
        (wheels / f"planted_layers-{name}-py3-none-any.whl").unlink()
    write_wheel(wheels, "planted_layers", "1.8", "MARKER = 'older'\n")
    assert "1.9.1 is older" in machine.version(expect=1)


def test_train_kernel_is_finished_only_by_the_mark(project: Path, tmp_path: Path) -> None:
    machine = Machine(project, tmp_path, TRAIN, TWO_CALLS)
    assert "not finished; attach this output and push" in machine.version()
    facts = {"kind": "train", "recipe": "configs/cpu.toml", "out": "models/tile-xla"}
    assert machine.facts == facts | {"finished": False}
    machine.pipeline.write_text(TWO_CALLS.replace('"xx"', '"x"'))
    machine = Machine(project, tmp_path / "next", TRAIN)
    assert "kernel: done: " in machine.version()
    assert machine.facts == facts | {"finished": True}
    command = json.loads((machine.working / "models/tile-xla/seen.json").read_text())
    assert command[command.index("--resume-from") + 1] == str(machine.kaggle / "input")


@pytest.fixture(params=["run", "infer"])
def machine(request: pytest.FixtureRequest, project: Path, tmp_path: Path) -> Machine:
    return Machine(project, tmp_path, KINDS[request.param], TWO_CALLS)


def test_unfinished_run_is_resumed(machine: Machine) -> None:
    log = machine.version()
    assert machine.facts["finished"] is False
    assert "kernel: not finished; attach this output and push the kernel again" in log
    assert not (machine.working / "submission.csv").exists()
    seen = machine.seen()
    assert 689 < float(seen[seen.index("--max-minutes") + 1]) < 690
    assert ("--models" in seen) is (machine.kind.kind == "infer")
    earlier = machine.attach("notebooks/someone/this-kernel")
    for path in [earlier, *earlier.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    log = machine.version()
    assert f"kernel: resumes {earlier / 'run'}" in log
    assert machine.facts["finished"] is True
    assert "kernel: done: " in log
    assert (machine.working / "submission.csv").read_text() == "ID,TopConfigs"
    assert (machine.working / "run" / "models").is_dir() is (machine.kind.kind == "run")
    copied = [path for path in machine.working.rglob("*") if not path.stat().st_mode & 0o200]
    assert copied == []


def test_only_one_unfinished_output_is_resumed(
    machine: Machine,
) -> None:
    machine.version()
    (other,) = {*KINDS} - {machine.kind.kind, "train"}
    machine.attach("one", finished=True)
    machine.attach("two", kind=other)
    (machine.attach("three") / "kernel.json").write_text("[" * 100_000)
    assert "resumes" not in machine.version()
    assert machine.facts["finished"] is False  # begun anew
    attached = [machine.attach(name) for name in ("x1", "x2")]
    log = machine.version(expect=1)
    assert f"more than one unfinished output is attached: {attached[0]}, {attached[1]};" in log
    assert not (machine.working / "run").exists()


def test_hanging_run_is_stopped_and_keeps_its_output(project: Path, tmp_path: Path) -> None:
    short = KINDS["run"]._replace(max_minutes=0.02, saving_minutes=0.02)
    machine = Machine(project, tmp_path, short, HANGS)
    assert "the command did not stop in time" in machine.version()
    assert machine.facts["finished"] is False
    assert (machine.working / "run" / "models" / "a" / "calls.txt").read_text() == "x"


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [(signal.SIGTERM, False), (signal.SIGINT, True)],
)
def test_signal_ends_the_pipeline_and_the_same_script_resumes(
    number: signal.Signals, whole_group: bool, project: Path, tmp_path: Path
) -> None:
    """Ctrl-C in a terminal reaches the whole group; the pipeline hears of it once."""
    machine = Machine(project, tmp_path, KINDS["run"], WAITS)
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    def started() -> "subprocess.Popen[str]":
        return started_script(
            machine.script, machine.kaggle, machine.elsewhere, TMPDIR=str(scratch)
        )

    kernel, pid = started(), machine.working / "run" / "pid"
    while not (pid.exists() and pid.read_text()) and kernel.poll() is None:
        time.sleep(0.01)
    (os.killpg if whole_group else os.kill)(kernel.pid, number)
    said, error = kernel.communicate(timeout=60)
    assert kernel.returncode == 130
    told = f"kernel: stopped; run it again to resume from {machine.working}"
    assert said.splitlines()[-1] == told
    assert error == "out of timeerror: stopped by SIGTERM\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert list(scratch.iterdir()) == []
    assert not (machine.working / "kernel.json").exists()

    kernel = started()
    assert "kernel: done: " in kernel.communicate(timeout=60)[0]
    assert machine.facts["finished"] is True


# The real pipeline


@pytest.fixture
def kaggle(tiny_tree: Path, tmp_path: Path) -> Path:
    mount = tmp_path / "kaggle" / "input" / "competitions" / "predict-ai-model-runtime" / "npz_all"
    shutil.copytree(tiny_tree / "npz", mount / "npz")
    return tmp_path / "kaggle"


@pytest.fixture
def run_kernel(kaggle: Path, tmp_path: Path) -> RunKernel:
    def run(recipe: Recipe, kind: Kind) -> str:
        number = len([path for path in tmp_path.iterdir() if path.name.startswith("version")])
        place = tmp_path / f"version{number}"
        table = recipe.model_dump(mode="json", exclude_none=True)
        attached = {"kernel_sources": ["someone/fast-or-slow-smoke-train"]}
        built = build("smoke", table, place / "built", kind=kind, **attached)
        scratch, site = place / "scratch", place / "scratch" / "site"
        site.mkdir(parents=True)
        (site / "sitecustomize.py").write_text(_NO_SOCKETS)
        paths = {"TMPDIR": str(scratch), "PYTHONPATH": str(site)}
        settings = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        ended = run_script(built, kaggle, scratch, **paths, **settings)
        assert ended.returncode == 0, ended.stderr
        left = [path.name for path in scratch.iterdir()]
        assert not [name for name in left if name.startswith("pipeline-") and "store" not in name]
        return ended.stdout + ended.stderr

    return run


def attach_output(kaggle: Path, mount: str) -> None:
    """Attach the output of the last version as a source of the next version."""
    target = kaggle / "input" / mount
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(kaggle / "working", target)


def finished(kaggle: Path) -> bool:
    return json.loads((kaggle / "working" / "kernel.json").read_text())["finished"]


@pytest.mark.slow
def test_trained_collections_become_a_submission(
    kaggle: Path, run_kernel: RunKernel, tiny_tree: Path, tmp_path: Path
) -> None:
    recipe = load_recipe("smoke", ["threads=1"])
    for number, collection in enumerate(COLLECTIONS):
        run_kernel(recipe, kind_named("train", collection.name))
        assert finished(kaggle)
        if number < 2:
            attach_output(kaggle, f"notebooks/someone/fast-or-slow-smoke-{collection.slug}")
        else:  # as a dataset of weights
            out = tmp_path / "weights" / collection.slug
            write_weights(kaggle / "working", out, title="Some weights")
            shutil.copytree(out, kaggle / "input" / "datasets" / "a" / f"w-{collection.slug}")

    run_kernel(recipe, KINDS["infer"])

    submission = kaggle / "working" / "submission.csv"
    call("submission", "check", submission, "--data", tiny_tree)
    options = ("--recipe", "smoke", "--set", "threads=1", "--out", tmp_path / "run")
    call("run", "--data", tiny_tree, *options)
    assert submission.read_bytes() == (tmp_path / "run" / "submission.csv").read_bytes()
    assert not (kaggle / "working" / "run" / "models").exists()
