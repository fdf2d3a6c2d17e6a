"""Folds that keep siblings together, what is held out for early stop, and the bounded cache."""

import json
import mmap
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from common.errors import PipelineError, UsageError
from common.settings import SAMPLE
from data.graphs.graph import LayoutGraph
from data.official.published import official_names
from data.read import read_layout
from data.synthetic.graphs import GraphSize
from data.synthetic.write import published_graphs, write_sized
from data.tree import GraphFile, collection_named, find_graphs
from features.scaling import fit_node_scaler
from models.layout.inputs import LayoutInputs, layout_inputs
from models.training.dataset import (
    CACHE_BYTES,
    LRUCache,
    bytes_held,
    family_of,
    grouped_folds,
    hold_out,
)
from models.training.device import prepare_torch


def named(names: Sequence[str], collection: str = "layout:xla:default") -> list[GraphFile]:
    place = collection_named(collection)
    return [GraphFile(place, "train", name, Path(f"{name}.npz")) for name in names]


LAYOUT_FAMILIES = {
    "resnet50": ["resnet50.2x2.fp16", "resnet50.4x4.bf16.performance", "resnet50.8x16.fp16"],
    "unet3d": ["unet_3d.4x4.bf16", "unet3d"],
    "bert_pretraining": ["bert_pretraining.4x4.fp16", "bert_pretraining.8x8.fp32.performance"],
    "efficientnet_b7": ["efficientnet_b7_eval_batch_1"],
    "mnasnet_a1": ["mnasnet_a1_batch_128"],
    "mnasnet_b1": ["mnasnet_b1_batch_128"],
    "inception_v2": ["inception_v2_batch_128_train", "inception_v2_batch_8_train"],
    "mlperf_resnet": ["mlperf_resnet", "mlperf_resnet_batch_128_1_shard"],
    "mlperf_ssd": ["mlperf_ssd_2_shard_batch_8_fast_epoch"],
    "mask_rcnn": ["mask_rcnn_batch_16_bf16_img1024", "mask_rcnn_batch_4_bf16_img1408"],
    "resnet_v1_50_official": ["resnet_v1_50_official_batch_128_f32"],
    "resnet_v2_50": ["resnet_v2_50_batch_128", "resnet_v2_50_batch_16"],
    "resnet_v2_101": ["resnet_v2_101_batch_128"],
    "tf2_bert_pretrain": ["tf2_bert_pretrain_dynamic_sequence_length"],
    "albert_en_base": ["albert_en_base_batch_size_16_test", "albert_en_base_batch_size_64_train"],
    "small_bert_bert_en_uncased_L-2_H-128_A-2": [
        "small_bert_bert_en_uncased_L-2_H-128_A-2_batch_size_64_test"
    ],
    "resnet_like": ["resnet_like_d4_b32", "resnet_like_d9_w64_b8"],
}
TILE_FAMILIES = {
    "alexnet": [
        "alexnet_train_batch_32_-1bae27a41d70f4dc",
        "alexnet_train_batch_32_84c81be1d6dc4ec",
    ],
    "unet3d": ["unet_3d.4x4.bf16_-38b1667a73368ca"],
    "bert_pretraining": ["bert_pretraining.8x8.fp32.performance_-48f1f0af8cb866bd"],
    "openai_v0_rnn_natural": ["openai_v0_rnn_natural_26ebeb3a88aaade2"],
    "gated_like": ["gated_like_w48_b32_12fb3551b8ef00e9", "gated_like_w48_b8_8201cab8e4e455ee"],
}


def test_siblings_share_a_family_and_programs_do_not() -> None:
    for collection, table in (("layout:xla:default", LAYOUT_FAMILIES), ("tile:xla", TILE_FAMILIES)):
        for family, names in table.items():
            assert {family_of(file) for file in named(names, collection)} == {family}, names


def test_every_graph_is_held_out_once_with_all_its_siblings() -> None:
    files = named([name for names in LAYOUT_FAMILIES.values() for name in names])
    folds = grouped_folds(files, 4, seed=0)
    assert sorted(file.name for fold in folds for file in fold) == sorted(f.name for f in files)
    families = [{family_of(file) for file in fold} for fold in folds]
    assert sum(map(len, families)) == len(set.union(*families))
    sizes = [len(fold) for fold in folds]
    assert max(sizes) - min(sizes) <= 1
    assert grouped_folds(files[::-1], 4, seed=0) == folds
    assert len({grouped_folds(files, 4, seed=seed) for seed in range(5)}) > 1


def test_too_few_architectures_are_named() -> None:
    files = named(["resnet50.2x2.fp16", "resnet50.8x8.fp16", "unet_3d.4x4.bf16"])
    assert len(grouped_folds(files, 2, seed=0)) == 2
    said = r"3 train graphs are of 2 architectures \(resnet50, unet3d\)"
    with pytest.raises(PipelineError, match=said):
        grouped_folds(files, 3, seed=0)
    with pytest.raises(UsageError, match="folds = 1: expected at least 2"):
        grouped_folds(files, 1, seed=0)


def test_families_of_the_embedded_sample_are_those_of_its_manifest() -> None:
    graphs = json.loads((SAMPLE / "manifest.json").read_text())["graphs"]
    files = find_graphs(SAMPLE, splits=("train", "valid"))
    pairs = {(graphs[file.submission_id]["family"], family_of(file)) for file in files}
    assert len(pairs) == len(dict(pairs)) == len({read for _, read in pairs})
    # Not a training step of `tensor`, but a family of its own all the same.
    assert [pair for pair in pairs if pair[0] != pair[1]] == [("tensor_train", "tensor")]
    assert len(files) > 100


def test_no_official_name_ends_as_our_own_do() -> None:
    names = frozenset().union(*official_names().values())
    ours = re.compile(r"_b\d+$|(_[a-z]\d+){2,}$")
    assert len(names) > 1000 and not [name for name in names if ours.search(name)]


@pytest.mark.parametrize("seed", range(5))
def test_whole_families_are_held_out(seed: int) -> None:
    names = [f"net{family}_batch_{batch}" for family in "abcdefghij" for batch in (1, 2, 4)]
    files = named(names)
    held_out = hold_out(files, seed)
    assert not held_out.by_config
    assert {*held_out.learned, *held_out.judged} == set(files)
    assert len(held_out.judged) == 3
    assert not {*map(family_of, held_out.learned)} & {*map(family_of, held_out.judged)}
    assert held_out == hold_out(files, seed)
    many = hold_out(named([f"net{i}q" for i in range(3000)]), seed)
    assert len(many.judged) == 100  # no more, of however many


def test_one_family_alone_holds_out_configs() -> None:
    files = named(["net_batch_1", "net_batch_2"])
    held_out = hold_out(files, 0)
    assert held_out.by_config
    assert held_out.learned == held_out.judged == tuple(files)
    for n, n_judged in ((2, 0), (19, 0), (20, 2), (200, 20)):  # small graphs keep all
        learned, judged = (held_out.configs(n, judged=judged) for judged in (False, True))
        assert len(judged) == n_judged
        assert sorted([*learned, *judged]) == list(range(n))
        assert np.array_equal(held_out.configs(n, judged=True), judged)
    everything = replace(held_out, by_config=False)
    assert everything.configs(200, judged=True).tolist() == list(range(200))


def test_no_collection_teaches_what_another_is_judged_on() -> None:
    names = [f"net{letter}q" for letter in "abcdefghij"]
    xla = named(names)
    random = collection_named("layout:xla:random")
    others = [replace(file, collection=random) for file in named([*names[3:], "net_other"])]
    held_out = hold_out([*xla, *others], 0)
    alone = [hold_out(files, 0) for files in (xla, others)]
    assert {*held_out.judged} == {*alone[0].judged, *alone[1].judged}
    judged = set(map(family_of, held_out.judged))
    assert {*held_out.learned} == {f for f in [*xla, *others] if family_of(f) not in judged}
    assert not held_out.by_config


def test_configs_held_out_of_one_collection_are_held_out_of_all() -> None:
    nlp = collection_named("layout:nlp:random")
    single = [replace(file, collection=nlp) for file in named(["bert_batch_1", "bert_batch_2"])]
    held_out = hold_out([*named(["neta", "netb", "netc"]), *single], 0)
    assert held_out.by_config
    assert {*single} < {*held_out.learned} and {*single} < {*held_out.judged}


def test_collections_that_leave_no_graph_are_named() -> None:
    xla = named(["neta_batch_1", "neta_batch_2", "netb"])  # netb is nearest to a tenth
    random = collection_named("layout:xla:random")
    others = [replace(f, collection=random) for f in named(["netb_batch_1", "netb_batch_2"])]
    others += [replace(file, collection=random) for file in named(["neta"])]
    with pytest.raises(PipelineError, match="leaves no graph for one model of all to learn from"):
        hold_out([*xla, *others], 0)


TILE = collection_named("tile:xla")


def test_the_least_recent_items_go_first_once_there_are_too_many_bytes() -> None:
    made: list[str] = []

    def make(file: GraphFile) -> bytes:
        made.append(file.name)
        return bytes(int(file.name))

    cache = LRUCache(make, size=len, max_bytes=100)
    kept: list[int] = []  # most recent last
    for size in np.random.default_rng(0).integers(5, 130, 300):
        expected = list(map(int, made)) if size in kept else [*map(int, made), int(size)]
        kept = [*(other for other in kept if other != size), int(size)]
        while len(kept) > 1 and sum(kept) > 100:
            kept.pop(0)
        assert len(cache(GraphFile(TILE, "train", f"{size}", Path(f"{size}")))) == size
        assert list(map(int, made)) == expected
    assert 0 < len(made) < 300


def test_what_is_prefetched_is_made_once_and_by_another_thread() -> None:
    made: list[tuple[str, str]] = []

    def make(file: GraphFile) -> bytes:
        made.append((file.name, threading.current_thread().name))
        return bytes(10)

    cache = LRUCache(make, size=len, max_bytes=25)
    one, two, three = (GraphFile(TILE, "train", name, Path(name)) for name in "abc")
    cache(one)
    cache.prefetch([one, two, three])  # one is kept
    cache.prefetch([two])
    assert cache(three) == cache(two) == bytes(10)
    assert [name for name, _ in made] == ["a", "b", "c"]
    assert [thread.startswith("prefetch") for _, thread in made] == [False, True, True]
    cache(one)  # was least recent of three that do not fit
    assert [name for name, _ in made] == ["a", "b", "c", "a"]


def test_a_fault_in_prefetching_is_raised_where_the_item_is_asked_for() -> None:
    def make(file: GraphFile) -> bytes:
        raise PipelineError(f"{file.path}: damaged")

    cache = LRUCache(make, size=len)
    file = GraphFile(TILE, "train", "a", Path("a"))
    cache.prefetch([file])
    with pytest.raises(PipelineError, match="a: damaged"):
        cache(file)


def test_each_buffer_counts_once_and_what_is_mapped_not_at_all(tmp_path: Path) -> None:
    array = np.zeros((100, 3))
    prepare_torch(seed=0, threads=1)
    matrix = torch.sparse_csr_tensor([0, 1, 2], [1, 0], torch.ones(2), size=(2, 2))
    held = SimpleNamespace(one=array, other=(array[:5], torch.from_numpy(array)))
    assert bytes_held(held) == array.nbytes
    held = SimpleNamespace(one=torch.zeros(7), other=[torch.zeros(9)[:2]])
    assert bytes_held([held, held]) == 4 * (7 + 9)
    assert bytes_held(matrix) == 3 * 8 + 2 * 8 + 2 * 4  # rows, columns, values
    (tmp_path / "file").write_bytes(bytes(800))
    with (tmp_path / "file").open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.int64)
    assert bytes_held([mapped.reshape(10, 10)[2:], "text"]) == 0


NAMES_PER_SIZE, N_STEPS = 10, 12_000  # steps as of the recipe `leaderboard`
WRITTEN_CONFIGS = 200  # of each size; the others are drawn from the same layouts


def mapped_graph(folder: Path, size: GraphSize) -> LayoutGraph:
    """Make a graph whose packed configs are mapped from a file, as those of the store are."""
    few = replace(size, n_configs=min(size.n_configs, WRITTEN_CONFIGS))
    graph = read_layout(write_sized(folder, few))
    rng = np.random.default_rng(size.n_nodes)
    choices = graph.configs.alphabets.sizes
    indices = rng.integers(choices, size=(size.n_configs, len(choices)))  # hardly two are equal
    path = folder / f"{size.name}.indices.npy"
    np.save(path, indices.astype(graph.configs.indices.dtype))
    configs = replace(graph.configs, indices=np.load(path, mmap_mode="r"))
    return replace(graph, configs=configs, runtime_ns=rng.integers(10**6, 10**7, size.n_configs))


@pytest.mark.slow
def test_hardly_a_step_reads_its_graph_anew(tmp_path: Path) -> None:
    """A tenth of layout:nlp:random's train graphs, each under ten names; -s prints the share."""
    collections = [collection_named("layout:nlp:random")]
    sizes = [g.size for g in published_graphs(collections, ["train"], 1 / NAMES_PER_SIZE)]
    graphs = [mapped_graph(tmp_path, size) for size in sizes]
    scaler = fit_node_scaler((graph.node_feat for graph in graphs), scaling="log1p")
    by_name: dict[GraphFile, LayoutGraph] = {}
    for graph in graphs:
        for number in range(NAMES_PER_SIZE):
            path = graph.file.path.with_name(f"{graph.file.name}-{number}.npz")
            by_name[replace(graph.file, path=path)] = graph
    made: list[GraphFile] = []

    def make(file: GraphFile) -> LayoutInputs:
        made.append(file)
        return layout_inputs(by_name[file], rule="hops-1", scaler=scaler)

    cache, files = LRUCache(make, max_bytes=CACHE_BYTES), list(by_name)
    for step in range(N_STEPS):
        cache(files[np.random.default_rng([0, step]).integers(len(files))])
    share = len(made) / N_STEPS
    mib = np.mean([bytes_held(cache(file)) for file in files]) / 2**20
    print(f"{share:.1%} of {N_STEPS:,} steps read anew; {len(files)} graphs of {mib:.1f} MiB")  # noqa: T201
    assert len(files) >= 200
    assert share < 0.05
