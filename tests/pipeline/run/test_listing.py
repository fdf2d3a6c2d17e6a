"""Which run folders are found, and what is read of them."""

import json
from pathlib import Path

import pytest

from common.errors import PipelineError
from pipeline.run.listing import list_runs, read_report
from tests.command_line import call


def write_run(folder: Path, config: str, report: object = None, *, done: bool = False) -> None:
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config)
    if report is not None:
        (folder / "report.json").write_text(json.dumps(report))
    if done:
        (folder / "DONE").touch()


REPORT = {
    "score": 0.5,
    "revision": "abc",
    "collections": {"tile:xla": {"value": 0.5}, "layout:xla:default": {"value": None}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    whole = '[recipe]\nname = "cpu"\nseeds = [3, 4]\n'
    write_run(tmp_path / "b", whole, REPORT, done=True)
    write_run(tmp_path / "b" / "models" / "inner", 'model = "x"\nseed = 3\n', done=True)
    write_run(tmp_path / "a" / "deep", 'model = "gcn"\nseed = 7\n[recipe]\nname = "mine"\n')
    write_run(tmp_path / "c", "not toml")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_every_run_is_listed_once_with_what_it_was_made_with(folder: Path) -> None:
    model, whole, broken = list_runs(folder)
    assert (model.folder, model.state, model.model) == (folder / "a/deep", "unfinished", "gcn")
    assert (model.recipe, model.seeds, model.score) == ("mine", (7,), None)
    assert (whole.state, whole.recipe, whole.model, whole.seeds) == ("done", "cpu", None, (3, 4))
    assert (whole.score, whole.revision, whole.values) == (0.5, "abc", {"tile:xla": 0.5})
    assert broken.folder == folder / "c" and broken.problem and "\n" not in broken.problem


def test_runs_prints_a_table_and_the_faults(folder: Path) -> None:
    listed = json.loads(call("runs", folder, "--json"))
    assert [Path(entry["folder"]).name for entry in listed] == ["deep", "b", "c"]
    lines = call("runs", folder).splitlines()
    assert lines[0].split()[:6] == ["folder", "state", "recipe", "model", "seeds", "revision"]
    assert "tile:xla" in lines[0] and "3 4" in lines[2] and "0.5000" in lines[2]
    assert call("runs", folder / "empty").startswith("no runs")
    assert "no such folder" in call("runs", folder / "none", expect=1)


@pytest.mark.parametrize("content", ["{", "[]", '{"collections": 3}'])
def test_a_damaged_report_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(PipelineError, match=r"report\.json"):
        read_report(tmp_path)
    with pytest.raises(PipelineError, match=r"report\.json: no report; expected"):
        read_report(tmp_path / "none" / "report.json")


def test_a_run_without_a_report_is_told_what_to_do(tmp_path: Path) -> None:
    write_run(tmp_path / "cut", '[recipe]\nname = "cpu"\n')
    write_run(tmp_path / "model", 'model = "gcn"\nseed = 7\n', done=True)
    said = call("compare", tmp_path / "cut", tmp_path / "model", expect=1)
    assert f"the run is unfinished; finish it with `run … --out {tmp_path}/cut --resume`" in said
    said = call("compare", tmp_path / "model", tmp_path / "cut", expect=1)
    assert "this is one model's folder; expected the folder of a whole `run`" in said
