"""Folds with whole families, and the graphs held out for early stopping."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError, UsageError
from common.settings import SAMPLE
from data.families import family_of, grouped_folds, hold_out
from data.tree import GraphFile, collection_named, find_graphs


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
    # The name looks like a training step of `tensor`, but it is a separate family.
    assert [pair for pair in pairs if pair[0] != pair[1]] == [("tensor_train", "tensor")]
    assert len(files) > 100


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


def test_no_collection_trains_on_held_out_programs_of_another() -> None:
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
