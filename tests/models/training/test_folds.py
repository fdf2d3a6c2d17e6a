"""Folds that keep siblings together."""

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.errors import PipelineError, UsageError
from common.settings import ROOT, SAMPLE
from data.tree import GraphFile, collection_named, find_graphs
from models.training.folds import family_of, grouped_folds


def named(names: Sequence[str], collection: str = "layout:xla:default") -> list[GraphFile]:
    place = collection_named(collection)
    return [GraphFile(place, "train", name, Path(f"{name}.npz")) for name in names]


LAYOUT_FAMILIES = {
    "resnet50": [
        "resnet50.2x2.fp16",
        "resnet50.4x4.bf16.performance",
        "resnet50.8x16.fp16",
        "resnet50.8x8.fp32",
    ],
    "resnet50_3d": ["resnet50_3d.2x2.bf16"],
    "unet3d": ["unet_3d.4x4.bf16"],
    "bert_pretraining": ["bert_pretraining.4x4.fp16", "bert_pretraining.8x8.fp32.performance"],
    "bert_squad": ["bert_squad.2x2.fp32"],
    "alexnet": ["alexnet_train_batch_32"],
    "efficientnet_b7": ["efficientnet_b7_eval_batch_1"],
    "mnasnet_a1": ["mnasnet_a1_batch_128"],
    "mnasnet_b1": ["mnasnet_b1_batch_128"],
    "inception_v2": ["inception_v2_batch_128_train", "inception_v2_batch_8_train"],
    "inception_v3": ["inception_v3_batch_8_train"],
    "mlperf_resnet": ["mlperf_resnet", "mlperf_resnet_batch_128_1_shard"],
    "mlperf_ssd": [
        "mlperf_ssd_1_shard_batch_8_fast_epoch",
        "mlperf_ssd_2_shard_batch_8_fast_epoch",
    ],
    "mlperf_bert": ["mlperf_bert_batch_24_2x2"],
    "mask_rcnn": ["mask_rcnn_batch_16_bf16_img1024", "mask_rcnn_batch_4_bf16_img1408"],
    "resnet_v1_50_official": [
        "resnet_v1_50_official_batch_128_f32",
        "resnet_v1_50_official_batch_32_bf16",
    ],
    "resnet_v2_50": ["resnet_v2_50_batch_128", "resnet_v2_50_batch_16"],
    "resnet_v2_101": ["resnet_v2_101_batch_128"],
    "tf2_bert_pretrain": ["tf2_bert_pretrain_dynamic_sequence_length"],
    "albert_en_base": ["albert_en_base_batch_size_16_test", "albert_en_base_batch_size_64_train"],
    "albert_en_large": ["albert_en_large_batch_size_16_train"],
    "small_bert_bert_en_uncased_L-2_H-128_A-2": [
        "small_bert_bert_en_uncased_L-2_H-128_A-2_batch_size_16_train",
        "small_bert_bert_en_uncased_L-2_H-128_A-2_batch_size_64_test",
    ],
    "small_bert_bert_en_uncased_L-12_H-128_A-2": [
        "small_bert_bert_en_uncased_L-12_H-128_A-2_batch_size_16_train"
    ],
    "resnet_like": ["resnet_like_d4_b32", "resnet_like_d9_w64_b8"],
    "vgg_like": ["vgg_like_d6_w48_b32"],
    "xception_imagenet": ["xception_imagenet"],
}
TILE_FAMILIES = {
    "alexnet": [
        "alexnet_train_batch_32_-1bae27a41d70f4dc",
        "alexnet_train_batch_32_84c81be1d6dc4ec",
    ],
    "unet3d": ["unet_3d.4x4.bf16_-38b1667a73368ca"],
    "bert_pretraining": [
        "bert_pretraining.2x2.fp16_317a531bc62ddcc3",
        "bert_pretraining.8x8.fp32.performance_-48f1f0af8cb866bd",
    ],
    "openai_v0_rnn_natural": ["openai_v0_rnn_natural_26ebeb3a88aaade2"],
    "openai_v0_rnn_optimized": ["openai_v0_rnn_optimized_26ebeb3a88aaade2"],
    "gated_like": ["gated_like_w48_b32_12fb3551b8ef00e9", "gated_like_w48_b8_8201cab8e4e455ee"],
}


@pytest.mark.parametrize(
    ("collection", "families"),
    [("layout:xla:default", LAYOUT_FAMILIES), ("tile:xla", TILE_FAMILIES)],
)
def test_siblings_share_a_family_and_programs_do_not(
    collection: str, families: dict[str, list[str]]
) -> None:
    found = {
        file.name: family_of(file)
        for names in families.values()
        for file in named(names, collection)
    }
    assert found == {name: family for family, names in families.items() for name in names}


def test_a_dimension_makes_one_family_however_it_is_written() -> None:
    files = named(["unet3d", "unet_3d.4x4.bf16"], "layout:xla:default")
    assert [family_of(file) for file in files] == ["unet3d", "unet3d"]


def test_every_graph_is_held_out_once_with_all_its_siblings() -> None:
    files = named([name for names in LAYOUT_FAMILIES.values() for name in names])
    folds = grouped_folds(files, 4, seed=0)
    assert sorted(file.name for fold in folds for file in fold) == sorted(f.name for f in files)
    families = [{family_of(file) for file in fold} for fold in folds]
    assert sum(map(len, families)) == len(set.union(*families))
    sizes = [len(fold) for fold in folds]
    assert max(sizes) - min(sizes) <= 1


def test_folds_follow_the_seed_and_not_the_order_of_files() -> None:
    files = named([name for names in LAYOUT_FAMILIES.values() for name in names])
    assert grouped_folds(files, 3, seed=1) == grouped_folds(files[::-1], 3, seed=1)
    assert len({grouped_folds(files, 3, seed=seed) for seed in range(5)}) > 1


def test_too_few_architectures_are_named() -> None:
    files = named(["resnet50.2x2.fp16", "resnet50.8x8.fp16", "unet_3d.4x4.bf16"])
    assert len(grouped_folds(files, 2, seed=0)) == 2
    with pytest.raises(
        PipelineError, match=r"3 train graphs are of 2 architectures \(resnet50, unet3d\)"
    ):
        grouped_folds(files, 3, seed=0)
    with pytest.raises(UsageError, match="folds = 1: expected at least 2"):
        grouped_folds(files, 1, seed=0)


def test_families_of_the_embedded_sample_are_those_of_its_manifest() -> None:
    graphs = json.loads((SAMPLE / "manifest.json").read_text())["graphs"]
    checked = 0
    for file in find_graphs(SAMPLE, splits=("train", "valid")):
        assert family_of(file) == graphs[file.submission_id]["family"]
        checked += 1
    assert checked > 100


def test_no_official_name_ends_as_our_own_do() -> None:
    names = gzip.decompress((ROOT / "data" / "official" / "names.txt.gz").read_bytes()).decode()
    ours = re.compile(r"_b\d+$|(_[a-z]\d+){2,}$")
    assert len(names) > 1000 and not [name for name in names.split() if ours.search(name)]
