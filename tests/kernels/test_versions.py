"""A kernel in several versions: each goes on with the unfinished output of the one before."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kernels.build.build import build
from kernels.build.kinds import INFER, KINDS, RUN, Kind
from tests.kernels.build.test_build import MOUNT, RECIPE, add_data, run_kernel

RESUMABLE = [RUN, INFER]
IDS = [kind.template for kind in RESUMABLE]
# A run that takes two calls; the first one ends out of time.
PIPELINE = """
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
    sys.stderr.write("out of time")
"""


class Machine:
    """Runs a kernel of one kind, version after version."""

    def __init__(self, project: Path, folder: Path, kind: Kind, pipeline: str = PIPELINE) -> None:
        (project / "pipeline/__main__.py").write_text(pipeline)
        sources = ["someone/models"]
        options: dict[str, Any] = {"root": project, "required_modules": {}}
        built = build("cpu", RECIPE, folder / "built", kind=kind, kernel_sources=sources, **options)
        self.script, self.kind = built.script, kind.template
        self.kaggle, self.elsewhere = folder / "kaggle", folder / "elsewhere"
        self.working = self.kaggle / "working"
        add_data(self.kaggle, MOUNT)

    def version(self, *, expect: int = 0) -> str:
        """Run the next version, its working folder empty; return its log."""
        shutil.rmtree(self.working, ignore_errors=True)
        ended = run_kernel(self.script, self.kaggle, self.elsewhere)
        assert ended.returncode == expect, ended.stderr
        return ended.stdout + ended.stderr

    def attach(self, mount: str, **facts: object) -> Path:
        """Attach what the last version left; `facts` replace some of its kernel.json."""
        target = self.kaggle / "input" / mount
        shutil.copytree(self.working, target)
        noted = json.loads((target / "kernel.json").read_text())
        (target / "kernel.json").write_text(json.dumps(noted | facts))
        return target

    @property
    def facts(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.working / "kernel.json").read_text())
        return found


@pytest.fixture(params=RESUMABLE, ids=IDS)
def machine(request: pytest.FixtureRequest, project: Path, tmp_path: Path) -> Machine:
    return Machine(project, tmp_path, request.param)


def test_an_unfinished_run_is_gone_on_with(machine: Machine) -> None:
    log = machine.version()
    facts = {"kind": machine.kind, "recipe": "configs/cpu.toml", "finished": False}
    assert machine.facts == facts
    assert "kernel: not finished: push the kernel again with its own output attached" in log
    assert not (machine.working / "submission.csv").exists()
    assert (machine.working / "run" / "models").is_dir()  # what the next one goes on with

    earlier = machine.attach("notebooks/someone/this-kernel")
    for path in [earlier, *earlier.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    log = machine.version()
    assert f"kernel: goes on with {earlier / 'run'}" in log
    assert machine.facts == facts | {"finished": True}
    assert "kernel: done: " in log
    assert (machine.working / "submission.csv").read_text() == "ID,TopConfigs"
    assert (machine.working / "run" / "models").is_dir() is (machine.kind == "run")
    copied = [path for path in machine.working.rglob("*") if not path.stat().st_mode & 0o200]
    assert copied == []


def test_the_pipeline_is_told_when_to_stop(machine: Machine) -> None:
    machine.version()
    seen = json.loads((machine.working / "run" / "seen.json").read_text())
    assert seen[0] == "run"
    assert "--resume" in seen
    assert 689 < float(seen[seen.index("--max-minutes") + 1]) < 690
    assert ("--models" in seen) is (machine.kind == "infer")


@pytest.mark.parametrize("spoil", ["finished", "other kind", "no facts", "no run"])
def test_what_is_no_unfinished_output_of_its_kind_is_left_alone(
    machine: Machine, spoil: str
) -> None:
    machine.version()
    (other,) = {*KINDS} - {machine.kind, "train"}
    facts = {"finished": {"finished": True}, "other kind": {"kind": other}}.get(spoil, {})
    earlier = machine.attach("someone", **facts)
    if spoil == "no facts":
        (earlier / "kernel.json").write_text("[")
    if spoil == "no run":
        shutil.rmtree(earlier / "run")
    assert "goes on with" not in machine.version()
    assert machine.facts["finished"] is False  # begun anew


def test_two_unfinished_outputs_are_refused_by_name(machine: Machine) -> None:
    machine.version()
    attached = [machine.attach(name) for name in ("one", "two")]
    log = machine.version(expect=1)
    assert f"more than one unfinished output is attached: {attached[0]}, {attached[1]};" in log
    assert not (machine.working / "run").exists()


@pytest.mark.parametrize("kind", IDS)
def test_a_run_that_hangs_is_stopped_and_keeps_what_it_has(
    project: Path, tmp_path: Path, kind: str
) -> None:
    short = Kind(kind, kind, {"@MAX_MINUTES@": "0.02", "@SAVING_MINUTES@": "0.02"})
    machine = Machine(project, tmp_path, short, PIPELINE + "import time; time.sleep(60)\n")
    log = machine.version()
    assert "a step went on beyond its time" in log
    assert "not finished: push the kernel again" in log
    assert machine.facts["finished"] is False
    assert (machine.working / "run" / "models" / "a" / "calls.txt").read_text() == "x"
