"""A graph is searched, measured in rounds, written, named in the manifest, and resumed."""

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from autotune.collect import MIN_SPREAD, collect_graph, collect_graphs
from autotune.measure.journal import open_journal
from autotune.measure.timing import Visit
from autotune.plan import PLANS, plan_requests
from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import log, time_limit, watched_by
from common.settings import ROOT, SAMPLE
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import LayoutGraph, TileGraph
from data.labels import read_withheld
from data.manifest import read_manifest
from data.tree import COLLECTIONS, find_graphs, names_beside
from ensembles.ranking.program import load_graph
from tests.autotune.fakes import STEP_NS, SpinSource, collect_request


def test_plan_covers_each_layout_collection_and_measured_the_sample() -> None:
    """It was stopped before all programs were done. Its tile kernels are of an older revision."""
    requests = {request.submission_id: request for request in plan_requests("sample")}
    places = {(request.collection.name, request.split) for request in requests.values()}
    layouts = [collection.name for collection in COLLECTIONS if collection.kind == "layout"]
    assert places == {(name, split) for name in layouts for split in ("train", "valid", "test")}
    everything = itertools.chain.from_iterable(map(plan_requests, PLANS))
    splits = {(request.source.family, request.split) for request in everything}
    assert len(splits) == len({family for family, _ in splits})
    entries = json.loads((SAMPLE / "manifest.json").read_text())["graphs"]
    keys = ("program", "family", "split", "search", "n_configs_asked", "seed")
    measured = {name: entry for name, entry in entries.items() if entry["search"] != "tiles"}
    assert len(measured) == 113
    for name, entry in measured.items():
        options = requests[name].options()
        assert {key: entry[key] for key in keys} == {key: options[key] for key in keys}


def test_the_large_programs_are_those_of_the_plan_and_their_noise_is_known() -> None:
    requests = {request.submission_id: request for request in plan_requests("large")}
    entries = json.loads((ROOT / "data/large/manifest.json").read_text())["graphs"]
    assert entries.keys() == requests.keys() and len(entries) >= 6
    assert len(find_graphs(ROOT / "data/large")) == len(entries)
    for entry in entries.values():
        assert entry["n_nodes"] > 5_000 and entry["n_configs"] == 100 and not entry["failed"]
        assert entry["repeat_tau"] > 0.75 and entry["spread"] > MIN_SPREAD


def visits_of(journal: Path) -> list[tuple[int, int]]:
    """(config, round) of every visit line, in order."""
    whole = journal.read_bytes().rsplit(b"\n", 1)[0]  # a kill may have cut the last line off
    lines = [json.loads(line) for line in whole.splitlines()[1:]]
    return [(line["config"], line["round"]) for line in lines if "round" in line]


def test_layout_graph_reads_back_as_it_was_measured(tmp_path: Path) -> None:
    outcome = collect_graph(collect_request(), tmp_path)
    (file,) = find_graphs(tmp_path)
    assert outcome.path == file.path
    assert file.path == tmp_path / "npz/layout/xla/random/train/spin_b8.npz"
    graph = read_graph(file)
    assert isinstance(graph, LayoutGraph)
    assert graph.node_config_ids.tolist() == [1, 2]
    configs = graph.configs.rows(np.arange(10))
    options = configs[:, :, 6].astype(np.int64) + 1  # as SpinProgram spells them
    steps_ns = STEP_NS * (1 + 4 * options[:, 0] + options[:, 1])
    assert (graph.runtime_ns >= steps_ns).all()
    assert (graph.runtime_ns < steps_ns + STEP_NS / 2).all()
    names = load_graph(file.path).instruction_names
    assert names and names[1] == "step.1"
    names_beside(file.path).write_text("step.0\n")
    with pytest.raises(PipelineError, match=r"names\.txt: has 1 names; expected \d+, one for each"):
        load_graph(file.path)


def test_options_have_their_default_as_normalizer_and_test_runtimes_are_withheld(
    tmp_path: Path,
) -> None:
    collect_graph(collect_request(kind="options"), tmp_path)
    (file,) = find_graphs(tmp_path)
    graph = read_graph(file)
    assert isinstance(graph, TileGraph)
    (default_ns,) = set(graph.runtime_normalizers.tolist())
    assert STEP_NS <= default_ns < 1.5 * STEP_NS and default_ns in graph.runtime_ns
    for kind, is_tile in (("layout", False), ("options", True)):
        request = collect_request(kind=kind, split="test", program="other", family="other")
        collect_graph(request, tmp_path)
        assert len(request.stem) == 32 and int(request.stem, 16) >= 0
        hidden = read_graph(request.file(tmp_path))
        labels = read_withheld(tmp_path)[request.submission_id]
        assert not hidden.is_labelled and (labels.normalizers is not None) == is_tile
        assert (labels.runtime_ns >= STEP_NS).all()
        assert len(labels.runtime_ns) == hidden.n_configs


def test_manifest_says_how_it_was_measured(tmp_path: Path) -> None:
    request = collect_request(seed=3)
    once = collect_graph(request, tmp_path).entry["seconds"]
    entry = collect_graph(request, tmp_path, remeasure=True).entry
    manifest = read_manifest(tmp_path)
    assert set(manifest["graphs"]) == {"layout:xla:random:spin_b8"}
    environment = manifest["environments"][entry["environment"]]
    assert environment == {"platform": "cpu", "jax": "none", "device": "fake"}
    options = {"program": "spin_b8", "family": "spin", "search": "random", "seed": 3, "rounds": 2}
    results = {"clock": "process CPU time", "n_configs": 10, "failed": []}
    assert (options | results).items() <= entry.items()
    first, second = (
        open_journal(request.journal(tmp_path, again=again), {}) for again in (False, True)
    )
    runtimes, repeated = first.runtimes_ns(), second.runtimes_ns()
    assert entry["spread"] == pytest.approx(max(runtimes.values()) / min(runtimes.values()), 1e-5)
    by_setting = {tuple(first.settings[config]): ns for config, ns in sorted(runtimes.items())}
    assert entry["n_modules"] == entry["n_distinct"] == len(by_setting)
    before = [by_setting[tuple(second.settings[config])] for config in repeated]
    again_tau = kendalltau(before, [*repeated.values()]).statistic
    assert entry["again_tau"] == pytest.approx(again_tau, abs=1e-5)
    assert entry["default_over_fastest"] >= 1
    assert entry["seconds"] > once > 0  # of both measurements


def test_failing_and_hanging_configs_are_recorded_and_skipped(tmp_path: Path) -> None:
    spin = SpinSource(crashes=1, hangs=2, refuses=3)
    request = collect_request(spin, n_configs=16, timeout_s=1)
    entry = collect_graph(request, tmp_path).entry
    graph = read_graph(request.file(tmp_path))
    assert graph.n_configs + len(entry["failed"]) == 16
    reasons = {failure["reason"] for failure in entry["failed"]}
    assert reasons == {
        "the process ended with -6: Check failed: layout",
        "not done after 1 s",
        "ValueError: layout is not supported",
    }


@pytest.mark.parametrize(
    ("spin", "reason"),
    [
        (SpinSource(is_flat=True), f"expected {MIN_SPREAD} or more"),
        (SpinSource(refuses=0), "the compiler's own setting failed"),
    ],
)
def test_graph_without_spread_or_default_is_left_out_and_named(
    spin: SpinSource, reason: str, tmp_path: Path
) -> None:
    for _ in range(2):
        outcome = collect_graph(collect_request(spin, n_configs=16), tmp_path)
        assert outcome.path is None
        assert reason in outcome.entry["reason"]
    assert "layout:xla:random:spin_b8" in read_manifest(tmp_path)["left_out"]
    assert not (tmp_path / "npz").exists()


def test_more_rounds_keep_what_was_measured_and_other_options_are_refused(tmp_path: Path) -> None:
    request, more = collect_request(), collect_request(n_rounds=4)
    first = collect_graph(request, tmp_path, remeasure=True)
    before = visits_of(request.journal(tmp_path))
    collect_graph(collect_request(SpinSource(is_broken=True)), tmp_path)  # opens nothing
    with watched_by(stop_at(9)), pytest.raises(OutOfTime):
        collect_graph(more, tmp_path)
    with pytest.raises(UsageError, match="n_configs_asked 10, not 11"):
        collect_graph(replace(more, n_configs=11), tmp_path)
    entry = collect_graph(more, tmp_path, remeasure=True).entry
    visits = visits_of(request.journal(tmp_path))
    assert visits[: len(before)] == before
    assert len(visits) == len(set(visits)) == 10 * 5
    assert (entry["rounds"], entry["again_configs"]) == (4, first.entry["again_configs"])
    assert len(visits_of(request.journal(tmp_path, again=True))) == 4 * entry["again_configs"]
    medians = open_journal(request.journal(tmp_path), {}).runtimes_ns().values()
    assert sorted(read_graph(request.file(tmp_path)).runtime_ns) == sorted(medians)
    with pytest.raises(UsageError, match="measured with rounds 4, not 2; give another --out"):
        collect_graph(request, tmp_path)


def stop_at(n_configs: int) -> Callable[[str, int, int], None]:
    def stop(_: str, n_visited: int, __: int) -> None:
        if n_visited == n_configs:
            raise OutOfTime

    return stop


COMMAND = """
import sys
from pathlib import Path
from autotune.collect import collect_graphs
from tests.autotune.fakes import collect_request
request = collect_request(n_configs=int(sys.argv[1]), search="default")
collect_graphs([request], Path(sys.argv[2]))
"""


def collect_in_another_process(
    out: Path, *, n_configs: int, n_lines: int
) -> "subprocess.Popen[bytes]":
    """Start a process, and wait until its journal has some lines."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(n_configs), str(out)],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while sum(path.read_bytes().count(b"\n") for path in out.rglob("*.jsonl")) < n_lines:
        assert time.monotonic() < deadline, "nothing is measured"
        time.sleep(0.01)
    return process


def test_killed_collection_resumes_and_repeats_nothing(tmp_path: Path) -> None:
    request = collect_request(n_configs=24, search="default")
    journal = request.journal(tmp_path)
    process = collect_in_another_process(tmp_path, n_configs=24, n_lines=16)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with journal.open("ab") as stream:
        stream.write(b'{"config": 3, "round": 1, "runti')  # a line that the kill cut off
    before = visits_of(journal)
    assert not request.file(tmp_path).path.exists()
    collect_graph(request, tmp_path)
    visits = visits_of(journal)
    assert visits[: len(before)] == before
    assert len(visits) == len(set(visits)) == 24 * 3
    assert read_graph(request.file(tmp_path)).n_configs == 24
    assert not list(tmp_path.rglob("*.tmp"))


def test_ctrl_c_ends_soon_and_no_config_counts_as_failed(tmp_path: Path) -> None:
    process = collect_in_another_process(tmp_path, n_configs=200, n_lines=8)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.wait(timeout=20)
    assert process.returncode != 0
    lines = [line for path in tmp_path.rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert len(lines) >= 8
    assert not [line for line in lines if '"failed"' in line]


def test_time_over_leaves_a_valid_tree_that_the_same_call_completes_and_none_stops_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [
        collect_request(program=f"spin_{split}", n_configs=6, split=split, family=split)
        for split in ("train", "test", "valid")
    ]
    with time_limit(0):
        assert collect_graphs(requests, tmp_path) == []
    seen: list[tuple[str, int, int]] = []

    def watch(text: str, n_visited: int, total: int) -> None:
        if n_visited == 3 and "spin_test" in text:
            raise OutOfTime
        seen.append((text, n_visited, total))

    with watched_by(watch):
        (outcome,) = collect_graphs(requests, tmp_path)
    first = "first measurement"
    begun = [(f"configs of spin_test, {first}", n, 6) for n in range(3)]
    assert seen == [(f"configs of spin_train, {first}", n, 6) for n in range(7)] + begun
    assert read_graph(outcome.request.file(tmp_path)).n_configs == 6
    broken = collect_request(SpinSource(is_broken=True), program="broken")
    caplog.clear()
    with caplog.at_level(logging.INFO, log.name):
        outcomes = collect_graphs([broken, *requests], tmp_path, remeasure=True)
    assert [outcome.request for outcome in outcomes] == requests
    assert caplog.messages[0] == "1/4  left out: no such device"
    assert [line.split()[0] for line in caplog.messages[1:]] == ["2/4", "3/4", "4/4"]
    manifest = read_manifest(tmp_path)
    assert set(manifest["graphs"]) == {request.submission_id for request in requests}
    assert all(entry["again_tau"] is not None for entry in manifest["graphs"].values())
    assert set(read_withheld(tmp_path)) == {requests[1].submission_id}
    assert [read_graph(file).n_configs for file in find_graphs(tmp_path)] == [6] * 3


def test_journals_refuse_other_measurements_and_damage(tmp_path: Path) -> None:
    path = tmp_path / "graph.jsonl"
    journal = open_journal(path, {"seed": 1})
    journal.add(0, [1, 2], round=0, **Visit(5, 3)._asdict())
    journal.add(0, [1, 2], round=1, **Visit(6, 3)._asdict())
    again = open_journal(path, {"seed": 1})
    assert again.visits == {(0, 0): Visit(5, 3), (0, 1): Visit(6, 3)}
    assert again.settings == {0: [1, 2]}
    with pytest.raises(UsageError, match="was begun with seed 1, not 2"):
        open_journal(path, {"seed": 2})
    path.write_text(path.read_text().replace('"round"', '"rou'))
    with pytest.raises(PipelineError, match="line 2 is damaged"):
        open_journal(path, {"seed": 1})


def test_edited_program_is_not_taken_for_the_one_that_was_measured(tmp_path: Path) -> None:
    request = collect_request(n_configs=6, program="mine:step")
    edited = replace(request, spin=SpinSource(function="longer loop"))
    compiled_otherwise = replace(request, spin=SpinSource(n_nodes=4))
    with watched_by(stop_at(4)), pytest.raises(OutOfTime):
        collect_graph(request, tmp_path)
    for other in (edited, compiled_otherwise):
        with pytest.raises(UsageError, match="the program was edited since, or differs each"):
            collect_graph(other, tmp_path)
    assert not collect_graph(request, tmp_path).was_there
    assert collect_graph(compiled_otherwise, tmp_path).was_there  # the function is the same
    with pytest.raises(UsageError, match="the program was edited after its measurement"):
        collect_graph(edited, tmp_path)
    assert not collect_graph(request, tmp_path, remeasure=True).was_there
    assert collect_graph(request, tmp_path, remeasure=True).was_there


def test_family_is_in_one_split(tmp_path: Path) -> None:
    collect_graph(collect_request(), tmp_path)
    with pytest.raises(UsageError, match=r"its family spin is in the train split .*--split train"):
        collect_graph(collect_request(program="spin_b9", split="valid"), tmp_path)
