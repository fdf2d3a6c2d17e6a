"""Ways to choose are followed as slow references do, and the page comes from the results alone."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autotune.go import pretrain
from autotune.go.network import WHOLE_PROGRAM, Policy, PolicyConfig, decision_graph, given
from autotune.go.ppo import ChoiceRanker, PpoConfig
from autotune.go.pretrain import ALL_SETTINGS, OptionTable, rows_of, summarize_rounds
from autotune.measure.search import Search
from autotune.optimize.write import BEST
from autotune.spaces import menu
from benchmarks.autotune import compiles
from benchmarks.autotune.__main__ import SECONDS, main
from benchmarks.autotune.compiles import (
    BUDGETS,
    PROGRAMS,
    USERS,
    WAYS,
    best_so_far,
    follow,
    judge,
)
from common.files import write_text
from data.hlo.choices import Space
from data.hlo.compiler_options import N_OPTIONS
from tests.autotune.go.programs import UNSCALED, described, random_arrays

RUNTIME = np.array([5.0, 1.0, 1.04, 3.0, 9.0])


def judged(seed: int) -> dict[str, Any]:
    """Judge a ranker that knows all."""
    return judge(RUNTIME.astype(np.float32), RUNTIME, np.random.default_rng(seed))


def test_search_is_followed_to_all_tiles() -> None:
    told = list[list[float]]()

    def search() -> Search:
        told.append((yield np.array([[3], [1]])).tolist())
        told.append((yield np.array([[1], [4]])).tolist())

    order = follow(search(), RUNTIME, lambda tiles: tiles[:, 0])
    assert order.tolist() == [3, 1, 4]
    assert told == [[3.0, 1.0], [1.0, 9.0]]
    assert best_so_far(order, RUNTIME).tolist() == [3, *[1] * (len(BUDGETS) - 1)]


def test_perfect_ranker_needs_one_compile_and_chance_two() -> None:
    found = [judged(seed) for seed in range(2_000)]
    for order in ("ranker", "guided"):
        assert {one[order]["needed"] for one in found} == {1}
        assert found[0][order]["curve"] == [1.0] * len(BUDGETS)
    for order in ("random", "genetic"):  # (tiles + 1) / (near ones + 1)
        assert np.mean([one[order]["needed"] for one in found]) == pytest.approx(2.0, abs=0.07)


def write_results(out: Path) -> None:
    for seed in range(2):
        found = {"a": {"family": "x", **judged(seed)}, "b": {"family": "y", **judged(seed)}}
        write_text(out / f"tiles-{seed}.json", json.dumps(found))
        curves = {way: [1.0] * len(BUDGETS) for way in WAYS} | {"portfolio": [0.9] * len(BUDGETS)}
        programs = {name: {**curves, "all": 0.9, "same": 1.01} for name in PROGRAMS}
        facts = {"cpu": "a CPU", "jaxlib": "0.10"}
        options = {"revision": "abc", "facts": facts, "programs": programs}
        write_text(out / f"options-{seed}.json", json.dumps(options))
    for number, name in enumerate(USERS):
        best = {
            "is_faster": number > 0,
            **{"default_ms": 1.0, "ratio": 0.5, "ci95": [0.4, 0.6]},
            **{"aa_ratio": 1.0, "aa_ci95": [0.99, 1.01]},
            "decisions": {"options": {"xla_backend_optimization_level": "1"}},
            "on_all_cores": {"ratio": 0.7, "ci95": [0.6, 0.8]} if number else None,
            "environment": {"cpu": "a CPU", "jaxlib": "0.10"},
        }
        write_text(out / name / BEST, json.dumps(best))
        write_text(out / name / SECONDS, "31\n")


def test_page_comes_from_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path)
    main(["--out", str(tmp_path), "--report", str(tmp_path)])
    page = (tmp_path / "optimize.md").read_text()
    assert "| transformer | 1.000 | none is faster |" in page
    told = "0.500 [0.400, 0.600] | 1.000 [0.990, 1.010] | 0.700 [0.600, 0.800] |"
    assert f"| n_body | 1.000 | {told}" in page
    assert "| ranker | 1.00 [1.00, 1.00] | 1.000 | 1.000 |" in page and "\n2 kernels" in page
    assert "| portfolio | 0.900 [0.900, 0.900] |" in page
    assert "| portfolio | -0.100 [-0.100, -0.100] |" in page
    assert "Surely faster than the menu at equal compiles: portfolio at 1, " in page
    (tmp_path / USERS[3] / BEST).unlink()
    with pytest.raises(SystemExit, match="1"):
        main(["--out", str(tmp_path), "--report", str(tmp_path)])
    assert "not all is there" in capsys.readouterr().err


SMALL = PolicyConfig(tasks={"options": 3}, hidden=16, heads=2)


def made_up(seed: int) -> OptionTable:
    """Each knob's options have times of their own; the last setting fails."""
    rng = np.random.default_rng(seed)
    n_knobs = len(N_OPTIONS)
    knobs = [WHOLE_PROGRAM] * n_knobs, N_OPTIONS.tolist(), {"options": n_knobs}
    known = replace(
        described(random_arrays(seed), *knobs), facts={"cpu": "a CPU", "jaxlib": "0.10"}
    )
    times = rng.lognormal(0, 0.1, (n_knobs, 3))
    rounds = times[range(n_knobs), ALL_SETTINGS].prod(axis=1) * rng.lognormal(0, 0.01, (6, 96))
    rounds[:, -1] = np.inf
    default = rounds[:, :1] * rng.lognormal(0, 0.01, (6, 1))
    return summarize_rounds(known, np.concatenate([default, rounds], axis=1))


def subject_of(table: OptionTable) -> compiles.TaskProgram:
    torch.manual_seed(0)
    graph = decision_graph("program", table.description, UNSCALED)
    space = Space(table.description.n_options, table.description.groups)
    policy = Policy(SMALL)
    torch.nn.init.normal_(policy.heads["options"].weight)  # it has opinions
    return compiles.TaskProgram(graph, space, policy, ChoiceRanker(SMALL), 0)


@cache
def compiled(seed: int) -> dict[str, list[int]]:
    """Return what each way compiles after the default of a made-up table, in order."""
    table = made_up(seed)
    found = compiles.orders(subject_of(table), table, np.stack([made_up(5).seen, made_up(6).seen]))
    return {way: order[order != 0].tolist() for way, order in found.items()}


def test_way_sees_only_the_first_half_of_the_rounds() -> None:
    rounds = np.full((4, 97), 10.0)
    rounds[:, :2] = [[10, 10], [9, 11], [9, 11], [8, 12]]  # the default, and once more
    rounds[:, 2] = [5, 7, 30, 30]
    rounds[:, 3] = [8, 8, 6, 8]
    rounds[2:] *= 3  # the machine slows down
    known = made_up(0).description
    table = summarize_rounds(known, rounds)
    assert table.seen[:3].tolist() == [1.0, 0.6, 0.8]
    assert table.unseen[:3].tolist() == pytest.approx([1.0, 3.0, 0.7])
    assert table.same == pytest.approx((11 / 9 + 12 / 8) / 2)
    # In order: the default, 0.8, then 0.6, which was lucky, then a setting that is as the default.
    assert compiles.curve(np.array([0, 2, 1, 4]), table) == pytest.approx([0.7, *[3.0] * 5])


def test_curve_of_a_way_is_that_of_a_slow_reference() -> None:
    table, found = made_up(1), compiled(1)
    assert found.keys() == {*compiles.WAYS}
    for way, order in found.items():
        assert (
            len(set(order)) == len(order) >= (5 if way in ("fine-tuned", "guided") else BUDGETS[-1])
        )
        expected = []
        for budget in BUDGETS:
            best = min([(1.0, 1.0), *((table.seen[at], table.unseen[at]) for at in order[:budget])])
            expected.append(best[1])
        assert compiles.curve(np.array([0, *order]), table) == pytest.approx(expected)


def test_ways_compile_in_their_own_order() -> None:
    table = made_up(1)
    found, subject = compiled(1), subject_of(table)
    of_menu = [ALL_SETTINGS.tolist().index(setting) for setting in compiles.ALONE_FIRST.tolist()]
    assert sorted(of_menu) == sorted(rows_of(menu()))
    for way in (compiles.MENU, compiles.AS_OPTIMIZE):
        assert found[way][: len(of_menu)] == of_menu
    scores = subject.ranker.score(subject.graph, ALL_SETTINGS)
    assert (np.diff(scores[found["ranked"]]) >= 0).all()
    with torch.no_grad():
        decided = subject.policy(subject.graph, given(torch.from_numpy(ALL_SETTINGS)))
    likely = decided.log_probs.sum(dim=1)
    assert (likely[found["zero-shot"]].diff() <= 0).all()
    assert found["fine-tuned"][0] == found["zero-shot"][0] == int(likely.argmax())


def test_portfolio_adds_what_gains_most_beside_what_it_has() -> None:
    seen = np.ones((3, 96))
    seen[:, 5] = [0.7, 0.7, 1.0]
    seen[:, 6] = [0.6, 0.75, 1.1]  # as good on its own but adds less for the third
    seen[:, 7] = [1.0, 1.0, 0.9]
    order, taken = compiles.portfolio(seen), list[int]()
    for at in order[1:5].tolist():

        def total(candidate: int) -> float:
            return sum(min(1.0, *seen[p, [*taken, candidate]]) for p in range(3))

        left = [candidate for candidate in range(1, 96) if candidate not in taken]
        assert total(at) == pytest.approx(min(total(candidate) for candidate in left))
        taken.append(at)
    assert order[0] == 0 and len(set(order.tolist())) == 1 + BUDGETS[-1]


def test_held_out_families_are_not_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"PROGRAMS": tuple("abcd"), "FAMILIES": {"a": "x", "b": "x"}, "CONFIG": SMALL}
    small |= {"RANKER_STEPS": 2, "measure_options": lambda program, out: made_up(ord(program))}
    learn, learned_from = compiles.train_policy, list[str]()

    def noted(graphs, tables, seed):  # type: ignore[no-untyped-def]
        learned_from.append("".join(graph.name for graph in graphs))
        return learn(graphs, tables, seed=seed)

    for name, value in {**small, "train_policy": noted}.items():
        monkeypatch.setattr(compiles, name, value)
    monkeypatch.setattr(pretrain, "CONFIG", SMALL)
    monkeypatch.setattr(pretrain, "PRE_TRAINING", PpoConfig(steps=2))
    for _ in range(2):  # the second time all is there
        compiles.run_options([0, 1], tmp_path)
        assert sorted(learned_from) == ["abc", "abc", "abd", "abd", "cd", "cd"]
    page = compiles.options_section(tmp_path)
    assert page and "4 programs of 3 families" in page and "2 seeds" in page
    for way in compiles.WAYS:
        assert page.count(f"\n| {way} | ") == 1 + (way != compiles.MENU)
    found = [json.loads((tmp_path / f"options-{seed}.json").read_text()) for seed in (0, 1)]
    for program in "abcd":
        own, other = (seed["programs"][program] for seed in found)
        assert own["random"] != other["random"] and own["all"] == other["all"]
        for way in compiles.WAYS:  # rounds differ by about one per cent
            assert len(own[way]) == len(BUDGETS) and own["all"] < min(own[way]) + 0.05
    assert compiles.options_section(tmp_path / "none") is None
