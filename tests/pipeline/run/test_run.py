"""The command `run`: checks before any work, samples of valid configs, members that fall out."""

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from common.errors import UsageError
from common.jobs.workers import Workers
from data.graph_store.stored_graph import read_graph
from data.tree import collection_named, find_graphs
from models.predict import read_scores
from submissions.check import read_submission
from tests.support.command_line import call, stderr_of

LOADING = "stage: load the libraries"
LINEAR = ("--recipe", "smoke", "--set", "tile.models=[tile_linear]")
TILES = (*LINEAR, "--collections", "tile:xla")
NET = "cross_config_sage"
START, KEYS = f"{NET}.training.start_from", 'collection."layout:xla:random".'


@pytest.fixture(scope="module")
def finished(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of tiles; read it, never write to it."""
    out = tmp_path_factory.mktemp("run") / "tiles"
    call("run", "--data", tiny_tree, *TILES, "--out", out)
    return out


def test_the_untrained_rule_alone_has_the_value_of_the_baseline(
    tiny_tree: Path, tmp_path: Path
) -> None:
    rule = ("--set", "tile.models=[tile_baseline]")
    call("run", "--data", tiny_tree, *TILES, *rule, "--out", tmp_path / "run")
    part = json.loads((tmp_path / "run/report.json").read_text())["collections"]["tile:xla"]
    assert part["value"] == part["baseline"]
    # The five configs to measure must matter here.
    assert part["value"] != pytest.approx(1 - part["top5_error"], abs=1e-6)


@pytest.fixture
def places(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return folders and files that stop a command, without a cluster of Ray."""

    def no_cluster(workers: Workers) -> None:
        if workers.ray:
            raise UsageError(f"--ray {workers.ray}: no cluster to work with")

    monkeypatch.setattr(Workers, "check", no_cluster)
    found = {name: tmp_path / name for name in ("file", "out", "store", "trained")}
    found["trained"].mkdir()
    for file in (found["file"], found["trained"] / "tile_linear-seed0"):
        file.touch()
    return {"run": finished, **found}


@pytest.mark.parametrize(
    ("command", "code", "named"),
    [
        ("run --out {run}", 2, "contains a run already; pass --resume"),
        ("run --out {run} --resume --set seeds=[7]", 2, "with recipe.seeds = [0], now [7]"),
        (
            *("run --out {run} --resume --collections tile,layout:nlp:random", 2),
            "was begun with collections = ['tile:xla'], now ['tile:xla', 'layout:nlp:random']",
        ),
        ("run --out {file}/x", 1, "file/config.toml: cannot be written: "),
        ("run --store {out}/x", 2, "/x: is in --out "),
        ("run --ray far", 2, "--ray far: no cluster"),
        ("run --models {trained}", 1, "no trained model tile-xla/tile_linear"),
        ("run --models {out}", 1, "out: no such file or folder; expected a folder with"),
        ("train --out {file}/x", 1, "file/x/DONE: Not a directory"),
        ("train --out {trained}", 2, "seed0: is in the way and no run"),
        ("train --ray far", 2, "--ray far: no cluster"),
        ("prepare --ray far", 2, "--ray far: no cluster"),
        ("predict --out {trained}", 1, "trained: is a folder; expected the name of a file"),
        ("predict --out {file}/x.parquet", 1, "x.parquet: cannot be written: "),
    ],
)
def test_a_command_that_cannot_end_well_is_refused_before_any_work(
    command: str, code: int, named: str, places: dict[str, Path], tiny_tree: Path
) -> None:
    out, store = places["out"], places["store"]
    common = {
        "run": (*TILES, "--out", out, "--store", store),
        "train": (*LINEAR, "--collection", "tile:xla", "--out", out),
        "prepare": ("--store", store),
        "predict": ("--run", places["run"], "--collection", "tile:xla"),
    }
    name, *words = (word.format(**places) for word in command.split())
    *stages, error = stderr_of(name, *common[name], "--data", tiny_tree, *words, expect=code)
    assert named in error
    assert [stage for stage in stages if stage.startswith("stage: ")] in ([], [LOADING])
    assert not out.exists() and not store.exists()


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (['leave_out=["layout:xla:random:no"]'], "leave_out: no graph 'layout:xla:random:no' in"),
        (['leave_out=["no"]'], "'no' names no graph; expected such as layout:xla:default:NAME"),
        (["fit_on=[valid]"], 'expected ["train"] or ["train", "valid"]'),
        ([f"{KEYS}{START}=layout:nlp:random"], "collection has no train graph here"),
        ([f"{KEYS}{START}=layout:nlp"], "expected '', 'layout:xla:default', "),
        ([f"{START}=layout:xla:default"], f"{NET} would start from itself"),
        (
            [f"{KEYS}{START}=layout:xla:default", f"{KEYS}{NET}.hidden=8"],
            "of layout:xla:random: its weight ",
        ),
    ],
)
def test_an_impossible_fit_is_one_line(
    keys: list[str], named: str, tiny_tree: Path, tmp_path: Path
) -> None:
    sets = (word for key in keys for word in ("--set", key))
    words = ("run", "--data", tiny_tree, "--recipe", "smoke", "--collections", "layout:xla", *sets)
    *_, error = stderr_of(*words, "--out", tmp_path / "run", expect=2)
    assert error.startswith("error: ") and named in error
    assert not (tmp_path / "run").exists()


def test_a_recipe_file_may_be_renamed_before_a_run_is_resumed(
    tiny_tree: Path, tmp_path: Path
) -> None:
    text = 'tile.models = ["tile_linear"]\nseeds = [0]\nthreads = 1\n'
    for name, more in (("old", ""), ("new", ""), ("other", "[tile_linear]\npenalty = 3.0\n")):
        (tmp_path / f"{name}.toml").write_text(text + more)

    def words(command: str, name: str) -> list[object]:
        place = ["--data", tiny_tree, "--recipe", tmp_path / f"{name}.toml"]
        part = "--collections" if command == "run" else "--collection"
        return [command, *place, part, "tile:xla", "--out", tmp_path / command, "--resume"]

    for command in ("run", "train"):
        call(*words(command, "old"))
        call(*words(command, "new"))
        assert "was begun with recipe.name = 'old'" in call(*words(command, "other"), expect=2)
    assert json.loads((tmp_path / "run/report.json").read_text())["recipe"] == "old"


def test_a_name_that_no_run_takes_is_refused_before_anything_is_packed(
    tiny_tree: Path, tmp_path: Path
) -> None:
    """A name in two splits, and one that no submission can have, which `audit` lists as well."""
    tree, store, out = (tmp_path / name for name in ("tree", "store", "out"))
    shutil.copytree(tiny_tree / "npz/tile", tree / "npz/tile")
    first = next((tree / "npz/tile/xla/train").iterdir())
    words = ("run", "--data", tree, "--store", store, "--out", out, *TILES)
    twin, blank = tree / "npz/tile/xla/valid" / first.name, tree / "npz/tile/xla/test/a b.npz"
    next(blank.parent.iterdir()).rename(blank)
    faults = {
        f"{blank}: no row of a submission can have this name": twin,
        f"{twin}: the name is already in tile:xla ({first})": twin.with_name("copy.npz"),
    }
    for fault, added in faults.items():
        *stages, error = stderr_of(*words, expect=1)
        assert error.startswith(f"error: {fault}") and error.endswith(", or pass --skip-bad")
        assert stages == [LOADING]
        shutil.copy(first, added)
    assert not store.exists()
    listed, notes = call("audit", "--data", tree, expect=1), call(*words, "--skip-bad")
    for fault in faults:
        assert f"error: {fault}" in listed and f"left out: {fault}" in notes
    leak = "tile:xla/valid: contains copies of another split's graphs, so that its scores"
    assert leak in listed and leak in notes


def test_the_valid_split_is_ranked_and_judged_on_a_sample(tiny_tree: Path, tmp_path: Path) -> None:
    place = ("--data", tiny_tree, "--collections", "layout:xla:random", "--recipe", "smoke")
    sets = ("--set", "layout.models=[layout_linear,layout_boosting]", "--set", "valid_configs=8")
    out = tmp_path / "run"
    said = stderr_of("run", *place, *sets, "--out", out)
    report = json.loads((out / "report.json").read_text())
    part = report["collections"]["layout:xla:random"]
    files = {f.submission_id: read_graph(f).n_configs for f in find_graphs(tiny_tree)}
    n_all = sum(files[f"layout:xla:random:{name}"] for name in part["per_graph"])
    n_judged = 8 * part["n_graphs"]
    judged = f"layout:xla:random ({n_judged} of {n_all:,} configs)"
    note = f"judged on some configs of a graph only: {judged}"
    assert f"note: {note}" in said
    assert note in (out / "report.html").read_text()
    assert {figures["n_configs"] for figures in part["per_graph"].values()} == {8}
    assert part["baseline"] is not None
    valid, test = (read_submission(out / f"submission{name}.csv") for name in ("-valid", ""))
    assert {len(ranking) for ranking in valid.values()} == {8}
    assert all(len(ranking) == files[name] for name, ranking in test.items())

    def judged(file: Path, expect: int = 0) -> str:
        return call("score", "--data", tiny_tree, "--submission", file, expect=expect)

    assert note in judged(out / "submission-valid.csv")
    assert f"{part['value']:.4f}" in judged(out / "submission-valid.csv")
    short = re.sub(r",\d+;", ",", (out / "submission-valid.csv").read_text())
    (tmp_path / "short.csv").write_text(short)  # seven configs, but not those that are drawn
    assert "7 indices; expected" in judged(tmp_path / "short.csv", expect=1)
    member, scores = (
        out / name / "layout-xla-random/layout_linear-seed0" for name in ("models", "scores")
    )
    for split, n_rows in (("valid", n_judged), ("test", sum(map(len, test.values())))):
        call("predict", "--data", tiny_tree, "--run", member, "--split", split)
        own = pl.read_parquet(member / f"scores-{split}.parquet")
        assert own.equals(pl.read_parquet(scores / f"{split}.parquet"))
        assert own.height == n_rows
    csv = ("--submission", tmp_path / "blend/valid.csv", "--collection", "layout:xla:random")
    call("blend", "--runs", member, "--split", "valid", *csv, "--out", tmp_path / "blend.parquet")
    assert "judged on" in judged(tmp_path / "blend/valid.csv")


def test_a_finished_run_that_is_resumed_keeps_what_made_it(
    finished: Path, tiny_tree: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(finished, tmp_path / "run")
    report = json.loads((out / "report.json").read_text()) | {"revision": "first"}
    words = ("run", "--data", tiny_tree, *TILES, "--out", out, "--resume")
    (out / "report.json").write_text(json.dumps(report))
    call(*words)
    assert json.loads((out / "report.json").read_text()) == report


XLA = collection_named("layout:xla:random")
COLUMNS = "config_columns_boosting"


@pytest.fixture
def known_and_new(tiny_tree: Path, tmp_path: Path) -> Path:
    """A tree whose valid split has the program of the train split, and another program."""
    known = find_graphs(tiny_tree, collections=(XLA,), splits=("train",))[0]
    new = find_graphs(tiny_tree, collections=(XLA,), splits=("valid",))[0]
    for source, place in ((known, "train/a"), (known, "valid/known"), (new, "valid/new")):
        path = tmp_path / "tree" / "npz" / XLA.folder / f"{place}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source.path, path)
    return tmp_path / "tree"


def test_a_member_falls_out_for_graphs_of_other_programs(
    known_and_new: Path, tmp_path: Path
) -> None:
    def run(*models: str, expect: int = 0) -> tuple[Path, str]:
        out = tmp_path / "-".join(models)
        sets = ("--set", f"layout.models=[{', '.join(models)}]")
        words = ("run", "--recipe", "smoke", *sets, "--data", known_and_new, "--out", out)
        return out, call(*words, expect=expect)

    def scores(out: Path, member: str) -> dict[str, list[float]]:
        table = read_scores(out / "scores" / XLA.slug / member / "valid.parquet")
        return {name[0]: part["score"].to_list() for name, part in table.group_by("graph")}

    (alone, _), (both, _) = run("layout_linear"), run("layout_linear", COLUMNS)
    assert scores(both, f"{COLUMNS}-seed0").keys() == {"known"}
    assert scores(both, "blend")["new"] == scores(alone, "blend")["new"]
    assert scores(both, "blend")["known"] != scores(alone, "blend")["known"]
    report = json.loads((both / "report.json").read_text())
    models, part = report["models"][XLA.name], report["collections"][XLA.name]
    values, gains = models["member_values"], models["gains"]
    assert values[f"{COLUMNS}-seed0"] > 0
    # On the graph that the member ranks, and not on both.
    known = part["per_graph"]["known"]["kendall_tau"]
    assert gains[f"{COLUMNS}-seed0"] == pytest.approx(known - values[f"{COLUMNS}-seed0"])
    assert gains["layout_linear-seed0"] == pytest.approx(
        part["value"] - values["layout_linear-seed0"]
    )
    _, text = run(COLUMNS, expect=1)
    assert f"{XLA.name}:new: neither this program nor the same program in another size" in text
