"""The configs to measure next, against a Gaussian process of inverses and densities, and files."""

import json
import re
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal, norm, rankdata

from common.errors import PipelineError
from common.settings import SAMPLE
from data.graphs.graph import Graph, LayoutGraph, TileGraph, distinct_configs
from ensembles import load_graph
from ensembles.picks import top_k_to_measure
from ensembles.ranking import suggest as module
from ensembles.ranking.configs import default_row
from ensembles.ranking.suggest import read_runtimes, request_text, suggest
from ensembles.score_errors import normal_draws
from models.run_folder import REPORT
from tests.ensembles.programs import LAYOUT_MODEL, LAYOUTS, TILES, first_of
from tests.ensembles.ranking.test_rank import rewritten
from tests.ensembles.test_picks import tiles_at, with_tiles
from tests.support.command_line import call

Floats = NDArray[np.float64]
SIZES = tuple((2**a, 2**b) for a in range(8) for b in range(8))
# The fastest tile is 8 x 32.
TRUE_NS = np.array([1e4 * (1 + abs(a - 3) + abs(b - 5)) for a in range(8) for b in range(8)])


def likeness(graph: Graph, rows: NDArray[np.int64], scale: float) -> Floats:
    """Return the correlation of errors, (r, r), pair by pair."""
    if isinstance(graph, LayoutGraph):
        values = graph.configs.rows(rows)
        differing = np.array([(values != one).any(axis=2).mean(axis=1) for one in values])
        return np.exp(-differing / (0.3 * scale))
    assert isinstance(graph, TileGraph)
    sizes = np.log1p(graph.config_feat[rows, 8:10].astype(np.float64))
    squares = np.array([np.square(sizes - one).sum(axis=1) for one in sizes])
    return np.exp(-squares / (2 * (2.0 * scale) ** 2))


def evidence_at(scale: float, log_ns: Floats, prior: Floats, covariance: Floats) -> float:
    density = multivariate_normal(prior, covariance)
    return len(log_ns) * np.log(scale) + density.logpdf(scale * (log_ns - log_ns.mean()))


def posterior(
    likenesses: list[Floats], prior: Floats, log_ns: Floats, repeats: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return mean and covariance of the candidates' log runtimes by the most likely values."""
    m, best, result = len(log_ns), -np.inf, (prior, prior)
    for like, error, noise in product(likenesses, (0.5, 1, 2, 4, 8), (0.01, 0.1)):
        whole = error**2 * like + 100
        known = whole[:m, :m] + error**2 * np.diag(noise / repeats)
        found = minimize_scalar(
            lambda log_scale, known=known: (
                -evidence_at(np.exp(log_scale), log_ns, prior[:m], known)
            ),
            bounds=(-5, 10),
            method="bounded",
            options={"xatol": 1e-10},
        )
        if -found.fun > best:
            best, scale = -found.fun, np.exp(found.x)
            onto = whole[m:, :m] @ np.linalg.inv(known)
            rest = scale * (log_ns - log_ns.mean()) - prior[:m]
            covariance = whole[m:, m:] - onto @ whole[:m, m:] + 1e-6 * error**2 * np.eye(len(onto))
            result = (prior[m:] + onto @ rest) / scale + log_ns.mean(), covariance / scale**2
    return result


def slow_suggest(
    scores: NDArray[np.float32],
    graph: Graph,
    runtimes: dict[int, list[float]],
    k: int,
    at_most: int,
) -> list[int]:
    rows, _ = distinct_configs(graph)
    prior = norm.ppf((rankdata(scores[rows]) - 0.5) / len(rows))
    means = {row: np.mean(np.log(values)) for row, values in runtimes.items()}
    learned = sorted(means, key=lambda row: means[row])
    left = sorted({*rows.tolist()} - {*learned}, key=lambda row: scores[row])
    log_ns = np.array([means[row] - min(means.values()) for row in learned])
    repeats = np.array([len(runtimes[row]) for row in learned])
    both = np.array([*learned, *left])
    places = np.searchsorted(rows, both)
    likenesses = [likeness(graph, both, scale) for scale in (1 / 3, 1, 3)]
    mean, covariance = posterior(likenesses, prior[places], log_ns, repeats)
    promising = np.argsort(mean - np.sqrt(np.diag(covariance)), kind="stable")[:at_most]
    factor = np.linalg.cholesky(covariance[np.ix_(promising, promising)])
    errors = factor @ normal_draws()[: len(promising)]
    draws = np.concatenate([mean[promising, None] + sign * errors for sign in (1, -1)], axis=1)
    fastest, chosen = np.zeros(draws.shape[1]), list[int]()
    while len(chosen) < k:
        expected = np.minimum(fastest, draws).mean(axis=1)
        expected[chosen] = np.inf
        chosen.append(int(expected.argmin()))
        fastest = np.minimum(fastest, draws[chosen[-1]])
    return [left[promising[place]] for place in chosen]


@pytest.fixture(params=["layout", "tile"])
def graph(
    request: pytest.FixtureRequest, layout_graph: LayoutGraph, tile_graph: TileGraph
) -> Graph:
    sizes = [(2**a, 3**b) for a in range(7) for b in range(6)]
    return layout_graph if request.param == "layout" else with_tiles(tile_graph, tiles_at(*sizes))


@pytest.mark.parametrize("at_most", [12, 256])
@pytest.mark.parametrize("seed", range(4))
def test_suggestions_are_those_of_the_slow_process(
    graph: Graph, seed: int, at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CANDIDATES", at_most)
    rng, (rows, group) = np.random.default_rng(seed), distinct_configs(graph)
    scores = rng.normal(size=len(rows)).astype(np.float32)[group]
    error = rng.normal(size=(3,)) @ rng.normal(size=(3, len(rows)))
    runtimes = {
        int(row): np.exp(12 + 0.2 * scores[row] + 0.1 * own + rng.normal(0, 0.02, n)).tolist()
        for row, own, n in zip(rng.permutation(rows)[:6], error, (1, 3, 2, 1, 1, 5), strict=False)
    }
    found = suggest(scores, graph, runtimes, 4)
    assert found == slow_suggest(scores, graph, runtimes, 4, at_most)


def test_first_batch_has_the_compilers_choice_and_failed_configs_never_return() -> None:
    # One of its configs leaves all layouts to the compiler.
    named = load_graph(SAMPLE / "npz/layout/xla/random/valid/ode_b8.npz")
    scores = np.arange(named.graph.n_configs, dtype=np.float32)
    own = default_row(named.graph)  # type: ignore[arg-type]
    assert suggest(scores, named.graph, {}, 3)[0] == own
    rows = suggest(scores, named.graph, {own: [np.inf]}, 3)
    assert own not in rows
    others = suggest(scores, named.graph, {own: [np.inf], rows[0]: [5.0, 5.5]}, 10_000)
    assert len({own, rows[0], *others}) == len(distinct_configs(named.graph)[0])
    for runtime_ns in (np.inf, 1.0):
        all_runtimes = {row: [runtime_ns] for row in range(named.graph.n_configs)}
        assert suggest(scores, named.graph, all_runtimes, 3) == []


def test_config_that_is_only_near_the_compilers_choice_is_not_forced(
    layout_graph: LayoutGraph,
) -> None:
    rows = np.arange(layout_graph.n_configs)
    closed = rows[(layout_graph.configs.rows(rows) >= 0).any(axis=(1, 2))]
    graph = layout_graph.only(closed)
    scores = np.arange(graph.n_configs, dtype=np.float32)
    expected = top_k_to_measure(scores, graph, 3).tolist()
    assert suggest(scores, graph, {}, 3) == expected
    assert default_row(graph) not in expected


def test_many_configs_are_sampled_from_the_first_to_the_last(
    tile_graph: TileGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONFIGS", 8)
    graph, scores = with_tiles(tile_graph, tiles_at(*SIZES)), np.arange(64, dtype=np.float32)
    rows = {*suggest(scores, graph, {0: [2.0], 9: [1.0]}, 9)}
    assert len(rows) == 8 and {1, 2, 3, 4, 63} <= rows


def test_lines_of_a_file_are_checked(tiny_tree: Path, tmp_path: Path) -> None:
    named, path = load_graph(first_of(tiny_tree, LAYOUTS).path), tmp_path / "next.csv"
    header, line, _ = request_text([2, 0], named.graph).splitlines()
    last = named.graph.n_configs - 1
    for content, message in {
        f"{header}\n{line}-3": "line 2: key 'runtime_ns' is '-3': expected a number greater than 0",
        f"{header}\n\n{line}1,200,000": "line 3: has 5 values; expected 3",
        f"{header}\n9999{line[1:]}": f"line 2: config 9999; expected 0..{last}",
        f"{header}\n1{line[1:]}": "line 2: config 1 has another hash; expected the same program",
        f"{header}\n{line}\n2": "has no runtimes",
        f'{header}\n"{line}9\n{line}5\n': "line 2: unexpected end of data",
        f'{header}\n"{line}9\n"{line}5\n': "line 2: unexpected end of data",
        f'{header}\n{line}"9\n{line}5\n': "line 2: unexpected end of data",
        f'{header}\n{line}"9\n"\n': "line 2: unexpected end of data",
        f'{header}\n{line}9"\n{line}5\n': "line 2: key 'runtime_ns' is '9\"'",
        f'{header}\n"2"x{line[1:]}9\n': "line 2: ',' expected after '\"'",
        f"{header}\n{line}NA\n": "line 2: key 'runtime_ns' is 'NA'",
        f"{header},runtime_ns\n": "line 1: has the column 'runtime_ns' twice; expected",
        header.replace(",", ";"): "line 1: has 'config;config_hash;runtime_ns'; expected config,",
        "\0".join(header): "line 1: has 'c\\x00o\\x00n",
        "": "line 1: has ''; expected config,config_hash,runtime_ns",
    }.items():
        path.write_text(content)
        with pytest.raises(PipelineError, match=re.escape(f"{path}: {message}")):
            read_runtimes(path, named)
    path.write_text(f"{header}\n{line}7", encoding="utf-16")
    with pytest.raises(PipelineError, match="not UTF-8 text; save it as CSV in UTF-8"):
        read_runtimes(path, named)
    for name in ("next.csv.gz", "next.xlsx", "next.tsv"):
        with pytest.raises(PipelineError, match=f"{name}: expected a .csv file; save or unpack"):
            read_runtimes(tmp_path / name, named)


def test_rows_without_a_runtime_are_counted(
    tiny_tree: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    named, path = load_graph(first_of(tiny_tree, LAYOUTS).path), tmp_path / "next.CSV"
    path.write_bytes(b"\xef\xbb\xbfconfig,runtime_ns\r\n2,1e3\r\n2,inf\r\n,\r\n\r\n")
    assert read_runtimes(path, named) == [(2, 1000.0), (2, np.inf)]
    assert caplog.messages == []
    path.write_text('config,runtime_ns\n"2","1e3"\n3, \n4\n')
    assert read_runtimes(path, named) == [(2, 1000.0)]
    assert caplog.messages == [f"{path}: 2 of 3 rows have no runtime"]


def test_another_program_is_refused(tiny_tree: Path) -> None:
    named = load_graph(first_of(tiny_tree, LAYOUTS).path)
    other = replace(named, graph=replace(named.graph, node_opcode=named.graph.node_opcode + 1))
    with pytest.raises(PipelineError, match="expected the program and configs of"):
        read_runtimes(named.path, other)


def test_command_asks_and_is_told(rankers: Path, tiny_tree: Path, tmp_path: Path) -> None:
    file, out = first_of(tiny_tree, LAYOUTS), tmp_path / "next.csv"
    words = ("suggest", "--program", file.path, "--run", rankers / LAYOUT_MODEL, "--count", 3)
    asked = json.loads(call(*words, "--out", out, "--json"))
    lines = out.read_text().splitlines()
    assert [int(line.split(",")[0]) for line in lines[1:]] == [
        e["config"] for e in asked["configs"]
    ]
    assert "exists, perhaps with runtimes" in call(*words, "--out", out, expect=2)
    out.write_text(
        "\n".join([lines[0], *(f"{line}{1000 + n}" for n, line in enumerate(lines[1:]))])
    )
    told = call(*words, "--measured", out)
    assert f"best        config {asked['configs'][0]['config']}, 1000 ns\n" in told
    assert told == call(*words, "--measured", out)
    with np.load(file.path) as arrays:
        part = {key: arrays[key][:4] for key in ("node_config_feat", "config_runtime")}
    some = rewritten(file, tmp_path / "some.npz", **part)
    left = json.loads(call(*words, "--measured", out, "--measured", some, "--json"))["configs"]
    known = {*range(4)} | {e["config"] for e in asked["configs"]}
    assert not known & {e["config"] for e in left}
    assert "all configs are measured" in call(*words, "--measured", file.path)
    tile = first_of(tiny_tree, TILES).path
    assert len(json.loads(call("suggest", "--program", tile, "--json"))["configs"]) == 5


def test_rank_tells_the_chance_of_a_gain(rankers: Path, tiny_tree: Path, tmp_path: Path) -> None:
    file, run = first_of(tiny_tree, LAYOUTS), tmp_path / "run"
    with np.load(file.path) as arrays:
        none = np.zeros_like(arrays["config_runtime"])
    path = rewritten(file, tmp_path / "unknown.npz", config_runtime=none)
    shutil.copytree(rankers / LAYOUT_MODEL, run)
    words = ("rank", path, "--run", run, "--collection", LAYOUTS)
    assert "worth it?" not in call(*words)
    gains = {"a": 1.5, "b": 1.005, "c": 1.0, "d": 0.9}
    graphs = {g: {"slowdown@1": 1.2 * x, "diversified_slowdown@5": 1.2} for g, x in gains.items()}
    own = {"metric": "kendall_tau", "value": 0.5, "per_graph": graphs}
    (run / REPORT).write_text(json.dumps({"collections": {LAYOUTS: own}}))
    assert "0.30 [0.03, 0.72], as in 1 of 4 valid graphs" in call(*words)
    assert json.loads(call(*words, "--json"))["faster_than_first"]["n_faster"] == 1
    assert "worth it?" not in call("rank", file.path, *words[2:])
