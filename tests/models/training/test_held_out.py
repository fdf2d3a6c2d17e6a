"""What is held out of the train split for early stop."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.tree import GraphFile, collection_named
from models.training.folds import family_of
from models.training.held_out import hold_out, part_configs

XLA = collection_named("layout:xla:default")


def files_named(*names: str) -> list[GraphFile]:
    return [GraphFile(XLA, "train", name, Path(f"{name}.npz")) for name in names]


@pytest.mark.parametrize("seed", range(5))
def test_whole_families_are_held_out(seed: int) -> None:
    names = [f"net{family}_batch_{batch}" for family in "abcdefghij" for batch in (1, 2, 4)]
    files = files_named(*names)
    held_out = hold_out(files, seed)
    assert not held_out.by_config
    assert {*held_out.learned, *held_out.judged} == set(files)
    assert len(held_out.judged) == 3
    assert not {*map(family_of, held_out.learned)} & {*map(family_of, held_out.judged)}
    assert held_out == hold_out(files, seed)


def test_no_more_than_about_a_hundred_graphs_judge() -> None:
    held_out = hold_out(files_named(*(f"net{i}q" for i in range(3000))), 0)
    assert len(held_out.judged) == 100


def test_one_family_alone_holds_out_configs() -> None:
    files = files_named("net_batch_1", "net_batch_2")
    held_out = hold_out(files, 0)
    assert held_out.by_config
    assert held_out.learned == held_out.judged == tuple(files)
    learned, judged = (held_out.configs(200, judged=judged) for judged in (False, True))
    assert len(judged) == 20
    assert sorted([*learned, *judged]) == list(range(200))
    everything = replace(held_out, by_config=False)
    assert everything.configs(200, judged=True).tolist() == list(range(200))


@pytest.mark.parametrize(("n", "n_judged"), [(2, 0), (19, 0), (20, 2), (1000, 100)])
def test_small_graphs_keep_all_their_configs(n: int, n_judged: int) -> None:
    learned, judged = part_configs(n)
    assert len(judged) == n_judged
    assert np.array_equal(np.sort(np.concatenate([learned, judged])), np.arange(n))
    assert np.array_equal(part_configs(n)[1], judged)


def test_no_collection_teaches_what_another_is_judged_on() -> None:
    names = [f"net{letter}q" for letter in "abcdefghij"]
    xla = files_named(*names)
    random = collection_named("layout:xla:random")
    others = [replace(file, collection=random) for file in files_named(*names[3:], "net_other")]
    held_out = hold_out([*xla, *others], 0)
    alone = [hold_out(files, 0) for files in (xla, others)]
    assert {*held_out.judged} == {*alone[0].judged, *alone[1].judged}
    judged = set(map(family_of, held_out.judged))
    assert {*held_out.learned} == {f for f in [*xla, *others] if family_of(f) not in judged}
    assert not held_out.by_config


def test_configs_held_out_of_one_collection_are_held_out_of_all() -> None:
    nlp = collection_named("layout:nlp:random")
    single = [replace(file, collection=nlp) for file in files_named("bert_batch_1", "bert_batch_2")]
    held_out = hold_out([*files_named("neta", "netb", "netc"), *single], 0)
    assert held_out.by_config
    assert {*single} < {*held_out.learned} and {*single} < {*held_out.judged}


def test_collections_that_leave_no_graph_are_named() -> None:
    xla = files_named("neta_batch_1", "neta_batch_2", "netb")  # netb is nearest to a tenth
    random = collection_named("layout:xla:random")
    others = [replace(f, collection=random) for f in files_named("netb_batch_1", "netb_batch_2")]
    others += [replace(file, collection=random) for file in files_named("neta")]
    with pytest.raises(PipelineError, match="leaves no graph to learn a shared model from"):
        hold_out([*xla, *others], 0)
