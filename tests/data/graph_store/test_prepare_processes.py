"""A store survives processes that are killed or work at once; packing takes little memory."""

import time
from pathlib import Path

import pytest

from data.graph_store.prepare import prepare
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import collection_named, find_graphs
from tests.data.graph_store.conftest import begin_prepare, contents
from tests.drills.processes import descendants, wait_until_gone

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "tree"
    for name in ("layout:xla:random", "layout:nlp:default"):
        for number in range(10):
            size = GraphSize(500, 25, 6_000 + 1_000 * number)
            write_sized(folder, size, collection=collection_named(name), seed=number)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    store = tmp_path_factory.mktemp("undisturbed")
    prepare(find_graphs(tree), store)
    return contents(store)


def seconds_to_pack(tree: Path, store: Path, *, workers: int) -> float:
    process = begin_prepare(tree, store, workers=workers)
    started = time.monotonic()
    process.communicate()
    assert process.returncode == 0
    return time.monotonic() - started


def kill_and_go_on(
    tree: Path, store: Path, undisturbed: dict[str, bytes], *, workers: int, delay_s: float
) -> int:
    """Kill a process that packs; return how many files it has finished, once all are right."""
    process = begin_prepare(tree, store, workers=workers)
    time.sleep(delay_s)
    children = descendants(process.pid) if process.poll() is None else []
    process.kill()
    process.communicate()
    wait_until_gone(children)
    left = contents(store) if store.is_dir() else {}
    whole = {name: content for name, content in left.items() if not name.endswith(".tmp")}
    assert whole.items() <= undisturbed.items()
    files = find_graphs(tree)
    is_new = [entry.is_new for entry in prepare(files, store)]
    assert is_new.count(False) == len(whole)
    assert contents(store) == undisturbed
    return len(whole)


@needs_proc
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_packing_resumes_and_leaves_no_process(
    workers: int, tree: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    wall_s = seconds_to_pack(tree, tmp_path / "whole", workers=workers)
    assert contents(tmp_path / "whole") == undisturbed
    for part in (0.3, 0.7):
        store = tmp_path / str(part)
        kill_and_go_on(tree, store, undisturbed, workers=workers, delay_s=part * wall_s)


@needs_proc
def test_memory_does_not_grow_with_the_configs(tmp_path: Path) -> None:
    """The larger file inflates to 0.58 GB."""
    peaks = []
    for n_configs in (20_000, 40_000):
        tree = tmp_path / str(n_configs)
        size = GraphSize(7_000, 200, n_configs)
        path = write_sized(tree, size).path
        process = begin_prepare(tree, tmp_path / "store" / str(n_configs))
        printed, _ = process.communicate()
        assert process.returncode == 0
        peaks.append(int(printed) / 1024)
        path.unlink()
    assert peaks[0] < 200
    assert abs(peaks[1] - peaks[0]) < 10
