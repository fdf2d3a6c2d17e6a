"""A wrong path or name is one line with the nearest right one, before libraries are loaded."""

import shutil
from pathlib import Path

import pytest

from common.settings import ROOT
from models.run_folder import CONFIG
from tests.support.command_line import stderr_of

GRAPH = "data/sample/npz/layout/xla/default/train/mlp_b16.npz"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a data tree, some runs, and texts that are no input."""
    shutil.copytree(ROOT / GRAPH.rpartition("/")[0], tmp_path / GRAPH.rpartition("/")[0])
    for run in ("first", "second", "tile"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / CONFIG).write_text('recipe = {name = "smoke"}\n')
    (tmp_path / "README.md").write_text("# A project\n\nIt has a text.\n")
    (tmp_path / "submission.csv").write_text("ID,TopConfigs\nlayout:xla:default:x,1;0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PIPELINE_DATA", raising=False)
    return tmp_path


RUNS = "runs: runs/first, runs/second, runs/tile; did you mean runs/first?"
NO_PATH = "no such file or folder; expected"


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        ("run --data data/smaple --out o", 1, f"data/smaple: {NO_PATH} a folder that contains"),
        ("run --data README.md --out o", 1, "README.md: is a file; expected a folder that cont"),
        ("run --data data/smaple --out o", 1, "npz/; did you mean data/sample?"),
        ("train --data data/smaple --out o --collection tile", 2, "known: tile:xla, layout"),
        ("train --data data/smaple --out o --collection tile:xla", 1, "mean data/sample?"),
        ("train --out o --collection layout:xla:defalt", 2, "did you mean layout:xla:default?"),
        ("train --out o --collection tile:xla --data data/sample --resume-from frist", 1, RUNS),
        ("tune --data data/smaple --out o", 1, "did you mean data/sample?"),
        ("audit --data data/smaple", 1, "did you mean data/sample?"),
        ("run --models runs/frist --data data/sample --out o", 1, RUNS),
        ("predict --run runs/frist", 1, f"runs/frist: {NO_PATH} a run folder; {RUNS}"),
        ("predict --run frist", 1, RUNS),
        (f"rank {GRAPH} --run runs/frist", 1, RUNS),
        (f"rank {GRAPH.replace('mlp', 'mpl')} --run runs/first", 1, f"did you mean {GRAPH}?"),
        ("report --run runs/frist", 1, RUNS),
        ("compare runs/first runs/frist", 1, "runs/first/report.json: no report"),
        ("runs runz", 1, "did you mean runs?"),
        (f"suggest --program {GRAPH} --run runs/frist", 1, RUNS),
        (
            f"suggest --program {GRAPH} --measured README.md",
            1,
            "README.md: line 1: has '# A project'; expected config,config_hash,runtime_ns",
        ),
        (f"suggest --program {GRAPH} --measured READ.md", 1, "did you mean README.md?"),
        ("run --recipe README.md", 2, "README.md: is a file; expected a .toml file with a recipe"),
        ("run --recipe cpuu", 2, "did you mean cpu?"),
        ("run --set features.prun=config", 2, "did you mean prune?"),
        ("score --submission sumbission.csv", 1, "did you mean submission.csv?"),
        ("score --submission README.md", 1, "row 1: header is '# A project'; expected 'ID,Top"),
        (
            "score --submission submission.csv --split vlaid",
            2,
            "one of 'train', 'valid', 'test'; did you mean valid?; `",
        ),
        ("statistics --out o --splits vlaid", 2, "did you mean valid?"),
        ("fetch --source kagle", 2, "'google', 'kaggle'; did you mean kaggle?; `"),
        ("synthesize --out o --plan smal", 2, "expected one of 'tiny', 'small', 'published'; did"),
        ("featurize READM.md --out o", 1, "did you mean README.md?"),
        (f"collect --program {GRAPH}x --out o", 1, f"did you mean {GRAPH}?"),
        ("optimize --program mlp_b16 --out o --space layots", 2, "did you mean layouts?"),
    ],
)
def test_wrong_path_or_name_is_one_line(folder: Path, words: str, code: int, line: str) -> None:
    (text,) = stderr_of(*words.split(), expect=code)
    assert text.startswith("error: ") and line in text
    assert not (folder / "o").exists()


def test_submission_of_the_other_split_names_the_right_file(folder: Path) -> None:
    shutil.copy(folder / "submission.csv", folder / "submission-valid.csv")
    for command in ("score --submission submission.csv", "submission check submission.csv"):
        words = (*command.split(), "--data", ROOT / "data/sample", "--split", "valid")
        (line,) = stderr_of(*words, expect=1)
        assert "answers no graph of split valid" in line
        assert line.endswith("; did you mean submission-valid.csv?")
