"""The blocks of each page run in order, as one script, on the sample and with small settings."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from common.settings import ROOT
from tests.docs.test_docs import FENCE, NAMES, PAGES, TEXTS
from tests.ensembles.programs import dense_module
from tests.support.command_line import run_in

# Patterns of lines in the shell and of blocks in Python, with the reason.
LEFT_OUT = {
    r"^make |^source |^export |^git clone |^cd |pip install|uv build": "changes the machine",
    r"submission (upload|list)|kernel (push|status|output|chain)|dataset push": "needs an account",
    r"fast-or-slow fetch|kernel wheels": "needs the network",
    r"bin/ray |--ray FIRST|bin/tensorboard|--storage": "needs other machines or a browser",
    r"benchmarks\.accuracy": "takes hours",
    r"--program my_(model|kernel):\w+ --configs": "test_docs.py runs and checks it",
    r"import torch_geo|from torch_geo|^@torch|submissions\.eva": "test_train_with_pyg.py runs it",
    r"^from runs\.optimized": "is part of a program of the reader",
}
SMALLER = {
    r"\.venv/bin/python": sys.executable,
    r"data/raw/tpugraphs|\bDIR\b": "data/sample",
    r"--recipe (cpu|leaderboard-small|leaderboard|smoke|trees)\b": "--recipe quick.toml",
    r"--trials \d+": "--trials 1",
    r"--configs 30": "--configs 8",
    r"--graph 14000:500:50000": "--graph 300:50:500",
    r"--plan published": "--plan published --share 0.01",
    r"optimize --program": "optimize --minutes 1 --candidates 2 --program",
    r"\bOWNER/": "me/",
    r"docs/guides": f"{ROOT}/docs/guides",
}
XLA = "data/sample/npz/layout/xla"
GRAPH = f"cp {XLA}/random/valid/gru_b8.npz graph.npz;"
MEASURED = "measured/npz/layout/xla/default/train"
# Runs and files that a page takes from another page or from the reader.
BEFORE = {
    "README.md": "cp -r runs/first runs/leaderboard; cp -r runs/first runs/smoke",
    "docs/explain/trust.md": f"{GRAPH} cp -r runs/first runs/gat",
    "docs/guides/add_a_model.md": GRAPH,
    "docs/guides/blend.md": "cp -r runs/first runs/wide",
    "docs/guides/kaggle.md": "mkdir -p runs/chain/fast-or-slow-leaderboard-infer;"
    "cp -r runs/first runs/chain/fast-or-slow-leaderboard-infer/output",
    "docs/guides/rank.md": f"cp {XLA}/default/train/lstm_b4.npz further.npz;"
    f"mkdir -p {MEASURED}; cp further.npz {MEASURED}",
    "docs/guides/tune.md": "sed -i s/cross_config_sage/gat/ my_space.toml",
    "docs/reference/command_line.md": f"{GRAPH} cp -r runs/first runs/a; cp -r runs/a runs/b;"
    "echo config,runtime_ns > runs.csv; echo 0,1e6 >> runs.csv;"
    "cp -r runs/a runs/hops2",
    "docs/reference/metrics.md": "cp -r runs/first runs/second",
}
# The pages that a reader opens first. Each command of a page takes some seconds.
QUICK = {"README.md", "docs/start/quickstart.md", "docs/reference/api.md"}
SAVE = re.compile(r"Save this as `([\w.]+)`:\n\n```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def script(text: str) -> str:
    """Return the blocks of a page that can run anywhere, as one script of the shell."""
    lines = []
    for language, block in FENCE.findall(text):
        parts = [block] if language == "python" else block.replace("\\\n", " ").splitlines()
        parts = [part for part in parts if not any(re.search(text, part) for text in LEFT_OUT)]
        if language == "python":
            lines += [f".venv/bin/python - <<'END'\n{part}END" for part in parts]
        elif not language:
            lines += parts
    joined = "\n".join(lines)
    for pattern, small in SMALLER.items():
        joined = re.sub(pattern, small, joined)
    return joined


SCRIPTS = {name: script(TEXTS[page]) for name, page in zip(NAMES, PAGES, strict=True)}
# The README stays quick: its runs are finished, and its other line is also on the page of optimize.
SCRIPTS["README.md"] = re.sub(r".*slow optimize .*", "", SCRIPTS["README.md"])
CASES = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
    for name, text in SCRIPTS.items()
    if text
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it is after `make run`, with a smaller recipe and the files of the reader."""
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        pytest.skip("make run is tested in the environment that it makes: make test")
    folder = tmp_path_factory.mktemp("workplace")
    shutil.copytree(ROOT / "data" / "sample", folder / "data" / "sample")
    for name, text in SAVE.findall("\n".join(TEXTS.values())):
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "module.hlo.pb").write_bytes(dense_module().SerializeToString())
    smoke = (ROOT / "configs" / "smoke.toml").read_text(encoding="utf-8")
    recipe = smoke.replace("seeds = [0]", "seeds = [0, 1]\n[layout]\ntogether = true")
    (folder / "quick.toml").write_text(recipe, encoding="utf-8")
    words = [f"RECIPE={folder / 'quick.toml'}", f"OUT={folder / 'runs' / 'first'}"]
    output = run_in(ROOT, "make", "run", *words)
    for shown in ("collection ", "mean ", "submission ", "report "):
        assert any(line.startswith(shown) for line in output.splitlines()), shown
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_blocks_of_a_page_run(workplace: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(workplace, tmp_path / "workplace")
    command = f'fast-or-slow() {{ "{sys.executable}" -m pipeline "$@"; }}'
    run_in(folder, "bash", "-exc", "\n".join([command, BEFORE.get(name, ""), SCRIPTS[name]]))


@pytest.mark.parametrize("pattern", [*LEFT_OUT, *SMALLER])
def test_each_exception_is_needed(pattern: str) -> None:
    assert any(re.search(pattern, text, re.MULTILINE) for text in TEXTS.values())
