"""Every command as a user calls it, on a small tree with the smoke recipe.

And each model of the full recipe goes through a run in the small.
"""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from autotune.plan import plan_requests
from common.reproducibility import revision
from common.settings import ROOT
from data.tree import COLLECTIONS, find_graphs
from pipeline.__main__ import VARIABLES, app
from submissions.check import read_submission
from tests.support.command_line import call, parse
from tests.support.failing_calls import failing, needs_compiler

MOST_IMPORTED, NAME = 300, "fast-or-slow"
SMOKE = ("run", "--recipe", "smoke", "--data")
MEASURE = ("collect", "--program", "mlp_b16")


def commands(group: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of all commands."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *words, name)
        else:
            yield *words, name


COMMANDS = [*commands(typer.main.get_command(app))]
GROUPS = sorted({words[:1] for words in COMMANDS if words[1:]})


def test_help_cuts_no_summary() -> None:
    texts = [call("--help"), *(call(*group, "--help") for group in GROUPS)]
    cut = [
        line
        for text in texts
        for line in text.splitlines()
        if line.endswith("...") and "ARGS" not in line
    ]
    assert not cut, f"the first line of their docstring is too long for --help: {cut}"


def test_help_has_each_command_in_a_group_and_the_variables() -> None:
    text = call("-h")
    assert text == call("--help")
    titles = ("Compete:", "Data:", "Models:", "Programs:", "Kaggle:", "Environment variables:")
    places = [text.index(f"\n{title}\n") for title in titles]
    assert places == sorted(places)
    entries = re.findall(r"^  (\S+) {2,}\S", text[places[0] :], re.MULTILINE)
    assert sorted(entries) == sorted({*(name for name, *_ in COMMANDS), *VARIABLES})
    files = [path for package in ("common", "pipeline") for path in (ROOT / package).rglob("*.py")]
    sources = [path.read_text() for path in files if path.name != "__main__.py"]
    for name in VARIABLES:
        assert any(f'"{name}"' in source for source in sources), f"nothing reads {name}"


@pytest.mark.parametrize("command", [(), *COMMANDS, *GROUPS], ids=" ".join)
def test_short_form_of_help(command: tuple[str, ...]) -> None:
    assert call(*command, "-h") == call(*command, "--help")


def test_version_and_revision_are_printed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert call("--version") == f"fast-or-slow {project['version']}, revision {revision()}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("r", ["run", "report", "runs", "rank"]),
        ("run --re", ["--recipe", "--resume"]),
        ("kernel b", ["build"]),
        ("plan --gpu a", ["a100"]),
    ],
)
def test_shell_completes_commands_and_options(words: str, expected: list[str]) -> None:
    line = f"fast-or-slow {words}"
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    result = CliRunner().invoke(
        app, [], prog_name=NAME, env={"_FAST_OR_SLOW_COMPLETE": "complete_bash", **variables}
    )
    assert result.output.split() == expected


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("rnu", "no such command 'rnu'; did you mean run?; `fast-or-slow --help`"),
        ("--foo", "no such option: --foo; `fast-or-slow --help` lists the options"),
        (
            "run --recpie x",
            "no such option: --recpie; did you mean --recipe or --resume?; `fast-or-slow run --h",
        ),
        ("run --max-minutes x", "invalid value for '--max-minutes': expected a number, at least 0"),
        ("run --workers 0", "invalid value for '--workers': expected a whole number, at least 1"),
        ("collect --static x", "invalid value for '--static': expected a whole number, at least 0"),
        (
            "synthesize --out o --share 2",
            "invalid value for '--share': expected a number, at least 0 and",
        ),
        ("plan --gpu t5", "invalid value for '--gpu': expected one of 'none', 't4', 'a100', "),
        ("train", "missing option '--collection'; `fast-or-slow train --help` lists the options"),
        ("kernel bild", "no such command 'bild'; did you mean build?; `fast-or-slow kernel --h"),
        ("blend --runs", "option '--runs' requires an argument; `fast-or-slow --help` lists"),
        ("runs a b\x1b", r"got unexpected extra argument(s) (b\x1b); `fast-or-slow runs --help`"),
    ],
)
def test_wrong_usage_of_the_command_line_is_one_line(words: str, line: str) -> None:
    result = CliRunner().invoke(app, words.split(" "), prog_name=NAME)
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.startswith(f"error: {line}") and result.stderr.count("\n") == 1


def test_help_imports_nothing_heavy() -> None:
    """So that it answers at once; how soon, benchmarks measure."""
    command = [sys.executable, "-X", "importtime", "-m", "pipeline", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    listed = done.stdout.partition("Compete:")[2]
    assert all(name in listed for name, *_ in COMMANDS)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    heavy = {"torch", "jax", "lightgbm", "kagglesdk", "matplotlib", "optuna", "numpy", "polars"}
    heavy |= {"scipy", "sklearn", "pydantic", "requests", "google.protobuf"}
    assert not heavy & imported
    assert len(imported) < MOST_IMPORTED


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_signs_that_the_terminal_lacks_are_printed_as_escapes(encoding: str) -> None:
    show = r"import pipeline.__main__; from typer import echo; echo('\u6570 \ud83d \udcca a')"
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", show]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, check=True)
    sign = "\u6570".encode() if encoding == "utf-8" else rb"\u6570"
    assert done.stdout.split() == [sign, rb"\ud83d", rb"\udcca", b"a"]


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPS], ids=" ".join)
def test_every_command_and_group_has_help_with_an_example(command: tuple[str, ...]) -> None:
    text, entry = call(*command, "--help"), typer.main.get_command(app)
    assert f"fast-or-slow {' '.join(command)}" in " ".join(text.split())
    for word in command:
        entry = entry.commands[word]  # type: ignore[attr-defined]
    for line in re.findall(r"fast-or-slow (.+)", entry.help or ""):
        parse(line)
    assert ("--debug" in text) == (command not in GROUPS)


def test_report_and_submission_are_as_the_contract_says(smoke_run: Path, tiny_tree: Path) -> None:
    report = json.loads((smoke_run / "report.json").read_text())
    assert {"score", "collections", "seeds", "environment", "revision"} <= set(report)
    values = []
    for collection in COLLECTIONS:
        part = report["collections"][collection.name]
        assert part["metric"] == {"layout": "kendall_tau", "tile": "tile_score"}[collection.kind]
        assert part["n_graphs"] == len(part["per_graph"])
        for figures in part["per_graph"].values():
            keys = {"kendall_tau", "opa", "slowdown@1", "slowdown@10", "slowdown@100", "n_configs"}
            assert keys <= set(figures)
        values.append(part["value"])
    assert report["score"] == pytest.approx(np.mean(values))
    tiles = report["models"]["tile:xla"]
    assert tiles["members"] == ["late_fusion_sage-seed0", "tile_boosting-seed0"]
    assert "blend" not in tiles  # blend.choose is off: nothing was chosen
    assert "layout:nlp:random" in (smoke_run / "report.html").read_text()
    rankings = read_submission(smoke_run / "submission.csv")
    files = find_graphs(tiny_tree, splits=("test",))
    assert list(rankings) == [file.submission_id for file in files]
    text = call("submission", "check", smoke_run / "submission.csv", "--data", tiny_tree)
    assert f"({len(files)} rows)" in text


def test_score_agrees_with_the_report(smoke_run: Path, tiny_tree: Path) -> None:
    arguments = ("score", "--submission", smoke_run / "submission-valid.csv", "--data", tiny_tree)
    scored = json.loads(call(*arguments, "--json"))
    report = json.loads((smoke_run / "report.json").read_text())
    assert scored["score"] == report["score"]
    for part in report["collections"].values():
        # Only the report has these keys, because they need the scores of the models.
        evidence = [
            part.pop(key) for key in ("baseline", "slowdown_curve", "seed_values", "seed_sd")
        ]
        assert (evidence[0] is None) == (evidence[1] is None) == (part["value"] is None)
        for own in (part, *part["per_graph"].values()):
            own.pop("noise_ceiling", None)
            five = own.pop("diversified_slowdown@5", None)
            assert (five is None) == (part["value"] is None)
    # The report has slowdowns of tiles by score, and a submission has five configs of each.
    tiles = [found["collections"].pop("tile:xla") for found in (scored, report)]
    assert tiles[0]["value"] == tiles[1]["value"]
    assert scored["collections"] == report["collections"]


def test_a_bad_file_stops_the_run_unless_skipped(tiny_tree: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(tiny_tree, tree)
    bad = sorted((tree / "npz/tile/xla/test").glob("*.npz"))[0]
    bad = bad.rename(bad.with_name("two\nlines.npz"))
    bad.write_bytes(bad.read_bytes()[:-40])
    out = tmp_path / "out"
    text = call(*SMOKE, tree, "--out", out, expect=1)
    assert text.startswith("error: ") and text.count("\n") == 1
    assert "two\\nlines.npz: no row of a submission can have this name" in text
    bad = bad.rename(bad.with_name("bad.npz"))
    text = call(*SMOKE, tree, "--out", out, expect=1)
    assert text.startswith(f"device: CPU, 1 thread\nerror: {bad}: ")
    assert text.count("\n") == 2
    assert not out.exists()
    text = call("audit", "--data", tree, expect=1)
    assert bad.name in text
    text = call(*SMOKE, tree, "--out", out, "--skip-bad")
    assert f"left out: {bad}" in text
    assert "submission.csv has no row for tile:xla:bad: its file is damaged" in text
    assert bad.name in json.loads((out / "report.json").read_text())["bad_files"][0]
    assert bad.name in (out / "report.html").read_text()
    next(tree.glob("npz/tile/xla/train/*.npz")).rename(bad.parent.parent / "train" / "other.npz")
    text = call(*SMOKE, tree, "--out", out, "--skip-bad", "--resume", expect=2)
    assert re.search(
        r"begun with other graphs: .*tile:xla/train/other is new.*; bring the former graphs", text
    )
    assert " is missing now" in text


@needs_compiler
def test_a_file_that_cannot_be_read_is_never_left_out(tiny_tree: Path, tmp_path: Path) -> None:
    for part in ("npz/tile/xla/train", "npz/tile/xla/test"):
        shutil.copytree(tiny_tree / part, tmp_path / part)
    words = [*SMOKE, tmp_path, "--store", tmp_path / "store", "--skip-bad"]
    command = [sys.executable, "-m", "pipeline", *words, "--out", tmp_path / "out"]
    fault = failing("read", errno.EIO, tmp_path / "npz/tile/xla/test/", always=True)
    env = {**os.environ, **fault}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 1, said
    assert re.fullmatch(rf"error: {tmp_path}/\S+: cannot be read: Input/output error.*", said)
    assert "left out" not in done.stderr and not (tmp_path / "out").exists()


def test_stages_on_their_own_give_what_run_gives(
    smoke_run: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    train = ("train", "--data", tiny_tree, "--recipe", "smoke", "--collection", "tile:xla")
    call(*train, "--out", tmp_path / "tile")
    members = sorted(path for path in (tmp_path / "tile").iterdir() if path.is_dir())
    assert [path.name for path in members] == ["late_fusion_sage-seed0", "tile_boosting-seed0"]
    for member in members:
        call("predict", "--data", tiny_tree, "--run", member, "--split", "test")
    call(
        *("blend", "--runs", members[0], members[1], "--out", tmp_path / "blend.parquet"),
        *("--submission", tmp_path / "tile.csv", "--collection", "tile:xla", "--data", tiny_tree),
    )
    whole = (smoke_run / "submission.csv").read_text().splitlines()
    expected = [line for line in whole if not line.startswith("layout")]
    assert (tmp_path / "tile.csv").read_text().splitlines() == expected
    from_run = pl.read_parquet(smoke_run / "scores/tile-xla/blend/test.parquet")
    blended = pl.read_parquet(tmp_path / "blend.parquet")
    assert blended["score"].to_list() == pytest.approx(from_run["score"].to_list())


def test_a_collection_without_train_split_is_ranked_by_its_sibling(
    tiny_tree: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(tiny_tree, tree)
    for part in ("layout/xla/random/train", "layout/nlp/default/train", "tile/xla/train"):
        shutil.rmtree(tree / "npz" / part)
    out = tmp_path / "out"
    text = call(*SMOKE, tree, "--out", out)
    models = json.loads((out / "report.json").read_text())["models"]
    assert models["layout:xla:random"]["fallback_from"] == "layout:xla:default"
    assert models["layout:nlp:default"]["fallback_from"] == "layout:nlp:random"
    assert models["tile:xla"]["fallback_from"] == "baseline"
    assert models["layout:xla:default"]["fallback_from"] is None
    for line in ("layout:xla:random: no train split; ranked by layout:xla:default", "tile:xla: no"):
        assert line in text
    parts = ("tile:xla", "layout:xla:random", "layout:nlp:default")
    missing = ", ".join(f"{part}/train" for part in parts)
    assert f"missing in {tree}, skipped: {missing}\n" in text
    call("submission", "check", out / "submission.csv", "--data", tree)


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("run", "--recipe", "nosuch"), 2, "known: cpu, leaderboard, leaderboard-small, reference"),
        (("run", "--recipe", "smoke", "--set", "cross_config_sage.hiden=3"), 2, "hiden"),
        (("run", "--recipe", "smoke", "--set", "features.prune=hops-0"), 2, "hops-k"),
        (("run", "--set", "tgraph.hidden=4"), 2, "--set tgraph.hidden: has no effect: recipe cpu"),
        (("run", "--set", "blend.weights={tgraph=2}"), 2, "blend.weights.tgraph: has no effect"),
        (
            ("run", "--collections", "layout", "--set", "tile_boosting.num_leaves=9"),
            2,
            "has no effect: recipe cpu ranks layouts by cross_config_sage, layout_boosting",
        ),
        (("run", "--set", "blend.layout_diversity=0"), 2, "unknown key 'blend.layout_diversity'"),
        (("run", "--recipe", "smoke", "--data", "/nonexistent"), 1, "/nonexistent"),
        (("audit", "--data", "/nonexistent"), 1, "/nonexistent"),
        (("synthesize", "--out", "x", "--plan", "huge"), 2, "tiny"),
        (("score", "--submission", "x.csv", "--split", "bogus"), 2, "'train', 'valid'"),
        (("train", "--collection", "bogus", "--out", "x"), 2, "layout:xla:default"),
        (("rank", "/nonexistent.npz", "--run", "runs"), 1, "/nonexistent.npz"),
        (("rank", ".", "--run", "runs"), 1, ".: a folder without modules; expected a file"),
        (("collect",), 2, "expected either --program or --plan"),
        ((*MEASURE, "--plan", "sample"), 2, "expected either --program or --plan"),
        (("collect", "--plan", "huge"), 2, "'--plan': expected one of 'sample', 'large'"),
        ((*MEASURE, "--kind", "loop"), 2, "--kind loop: no such value; known: layout, options, "),
        (("collect", "--program", "json:codecs"), 2, "is a module; expected a function"),
        ((*MEASURE, "--device", "npu"), 2, "--device npu: no such value; known: cpu"),
    ],
)
def test_wrong_usage_and_missing_input_give_one_line(
    arguments: tuple[str, ...], code: int, named: str, tmp_path: Path
) -> None:
    extra = ("--out", tmp_path / "out") if arguments[0] in ("run", "collect") else ()
    text = call(*arguments, *extra, expect=code)
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert named in text
    assert not (tmp_path / "out").exists()


def test_a_reader_that_stops_early_is_no_error(smoke_run: Path) -> None:
    piped = f"{sys.executable} -m pipeline runs {smoke_run} --json | head -c 10"
    done = subprocess.run(
        ["bash", "-c", piped], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert len(done.stdout) == 10
    assert done.stderr == ""


def test_a_missing_device_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    said = call(*MEASURE, "--out", tmp_path, "--device", "tpu", expect=1)
    assert "--device tpu: jax finds none here, only " in said and said.count("\n") == 1


def test_programs_are_listed() -> None:
    listed = json.loads(call("collect", "--list", "--json"))
    assert {"program": "mlp_b16", "family": "mlp"} in listed
    assert len(call("collect", "--kind", "options", "--list").splitlines()) == 1 + len(listed)


def test_nothing_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    """`make sample` is the command that the Makefile has, with no time to measure in."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (words,) = re.findall(r"-m pipeline collect (--plan sample .*) --out data/raw/sample", makefile)
    options = re.sub(r"--max-minutes \d+", "--max-minutes 0", words)
    said = call("collect", *options.split(), "--out", tmp_path)
    n = len(plan_requests("sample"))
    assert f"not done: {n} of {n} graphs; the same command resumes" in said
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".lock"]
