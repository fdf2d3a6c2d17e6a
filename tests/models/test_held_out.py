"""What is held out of the train split for early stop."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.tree import GraphFile, collection_named
from models.folds import family_of
from models.held_out import hold_out, part_configs

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
