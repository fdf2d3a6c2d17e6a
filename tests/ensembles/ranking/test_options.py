"""Compiler options to measure next: a simulated accelerator, files, and the command."""

import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from ensembles.ranking.options import (
    BUILTIN,
    Menu,
    Setting,
    option_correlations,
    option_flags,
    read_measured,
    read_menu,
    suggest_settings,
)
from tests.support.command_line import call, stderr_of

MENU = {f"xla_{name}": ("", "true") for name in "abcdefgh"}
SETTINGS = [*product(range(2), repeat=8)]
N_SEEDS, N_MEASURED, BATCH = 10, 24, 8


def additive_table(rng: np.random.Generator) -> dict[Setting, float]:
    """Return runtimes in ns by setting: each option multiplies the runtime by a factor."""
    effects = rng.normal(0, 0.1, 8)
    return {setting: float(1e6 * np.exp(effects @ setting)) for setting in SETTINGS}


def ask_and_tell(menu: Menu, table: Mapping[Setting, float], seed: int) -> set[Setting]:
    """Return the settings that are measured in three batches, with a noise of 2 %."""
    rng, runtimes = np.random.default_rng(seed), dict[Setting, list[float]]()
    while len(runtimes) < N_MEASURED:
        for setting in suggest_settings(menu, runtimes, BATCH, seed=seed):
            assert setting not in runtimes
            runtimes[setting] = [table[setting] * float(np.exp(rng.normal(0, 0.02)))]
    return {*runtimes}


def test_24_measurements_find_the_best_of_256_settings_more_often_than_random_draws() -> None:
    """Random draws find it with a chance of 24 / 256."""
    n_found = n_found_by_chance = 0
    for seed in range(N_SEEDS):
        rng = np.random.default_rng(seed)
        table = additive_table(rng)
        best = min(table, key=table.__getitem__)
        n_found += best in ask_and_tell(MENU, table, seed)
        drawn = rng.permutation(len(SETTINGS))[:N_MEASURED]
        n_found_by_chance += best in {SETTINGS[row] for row in drawn}
    assert n_found >= 0.8 * N_SEEDS
    assert n_found_by_chance <= 0.3 * N_SEEDS


def test_value_that_fails_is_avoided() -> None:
    """An eighth of the settings without the value are fast, so there is something to find."""
    table = additive_table(np.random.default_rng(0))
    runtimes = dict[Setting, list[float]]()
    for _ in range(3):
        for setting in suggest_settings(MENU, runtimes, BATCH, seed=0):
            runtimes[setting] = [np.inf if setting[2] else table[setting]]
    batch = suggest_settings(MENU, runtimes, BATCH, seed=0)
    assert sum(setting[2] for setting in batch) <= 1


def test_settings_with_a_value_of_which_all_measurements_failed_come_last() -> None:
    runtimes = {setting: [np.inf if setting[2] else 1.0] for setting in SETTINGS[:64:5]}
    assert sum(setting[2] for setting in runtimes) >= 2
    safe = {setting for setting in SETTINGS if not setting[2]} - {*runtimes}
    order = suggest_settings(MENU, runtimes, len(safe) + 5, seed=0)
    assert {*order[: len(safe)]} == safe and all(setting[2] for setting in order[len(safe) :])
    assert len(order) == len(safe) + 5
    # One failure is no reason, and neither is a value that once ran.
    first = SETTINGS[0b00100000]
    for few in ({first: [np.inf]}, {first: [np.inf, 1.0]}):
        assert any(setting[2] for setting in suggest_settings(MENU, few, 64, seed=0))


def test_first_batch_has_the_default_and_all_values_and_repeats_are_pooled() -> None:
    first = suggest_settings(MENU, {}, BATCH, seed=0)
    assert first[0] == (0,) * 8 and len({*first}) == BATCH
    assert (np.ptp(first, axis=0) == 1).all()
    noisy = {first[0]: [9.0, 9.0, 9.0, np.inf], first[1]: [10.0]}
    assert suggest_settings(MENU, noisy, 3, seed=0) == suggest_settings(
        MENU, noisy | {first[0]: [9.0] * 3}, 3, seed=0
    )
    everything = {setting: [1.0] for setting in SETTINGS}
    assert suggest_settings(MENU, everything, 3, seed=0) == []
    failed = {setting: [np.inf] for setting in first}
    assert not {*failed} & {*suggest_settings(MENU, failed, 300, seed=0)}


def test_large_space_is_searched_from_the_fastest_settings() -> None:
    """12 options of 3 values are 531,441 settings."""
    menu = {f"x{n}": ("", "1", "2") for n in range(12)}
    effects, runtimes = (
        np.random.default_rng(0).normal(0, 0.1, (12, 3)),
        dict[Setting, list[float]](),
    )
    for _ in range(8):
        for setting in suggest_settings(menu, runtimes, BATCH, seed=0):
            runtimes[setting] = [float(np.exp(effects[range(12), setting].sum()))]
    chance = np.exp(effects[range(12), np.random.default_rng(1).integers(3, size=(64, 12))].sum(1))
    assert min(runtimes.values())[0] < 0.7 * chance.min()


def test_correlations_are_shares_of_equal_options_and_their_exponentials() -> None:
    settings = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [1, 2, 3, 1]])
    share = np.array([[1, 0.75, 0], [0.75, 1, 0.25], [0, 0.25, 1]])
    found = option_correlations(settings)
    for like, expected in zip(
        found, [share, np.exp((share - 1) / 0.3), np.exp(share - 1)], strict=True
    ):
        assert like == pytest.approx(expected)


def test_builtin_menu_has_the_options_of_optimize() -> None:
    menu = read_menu(BUILTIN)
    assert menu["xla_cpu_prefer_vector_width"] == ("", "512", "128")
    assert option_flags(menu, (1, 2, 0, 1) + (0,) * (len(menu) - 4)) == (
        "--xla_disable_hlo_passes=dot-library-rewriter --xla_cpu_prefer_vector_width=128 "
        "--xla_cpu_use_fusion_emitters=false"
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "has 0 options; expected 1 to 64, such as xla_cpu_prefer_vector_width = [128, 512]"),
        ("a = 1", "'a' is 1; expected a name without -- and a list of different values"),
        ("a = []", "'a' is []; expected a name"),
        ("[a]\nb = [1]", "'a' is {'b': [1]}; expected a name"),
        ('"--a" = [1]', "'--a' is [1]; expected a name"),
        ("a = [true, 'True']", "'a' is [True, 'True']; expected a name"),
        ("a = ['$(rm x)']", "'a' is ['$(rm x)']; expected a name"),
        ("a = [[1]]", "'a' is [[1]]; expected a name"),
        ("a = [1", "not a TOML file"),
    ],
)
def test_fault_of_a_menu_is_one_line(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "menu.toml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=re.escape(f"{path}: {fault}")) as failure:
        read_menu(str(path))
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a;b\n1;2\n", "line 1: has 'a;b'; expected a,b,runtime_ns, with commas"),
        ("a,b\n1,2\n", "line 1: lacks the column 'runtime_ns'; expected a,b,runtime_ns"),
        ("a,b,c,runtime_ns\n", "line 1: has the other column 'c'; expected a,b,runtime_ns"),
        (
            "a,B,runtime_ns\n",
            "line 1: lacks the column 'b', has the other column 'B'; expected a,b,runtime_ns",
        ),
        ("a,b,runtime_ns\n1,,5\n,3,5\n", "line 3: column 'b' is '3'; expected true, x,y, or empty"),
        ("a,b,runtime_ns\n1,,fast\n", "line 2: runtime_ns is 'fast'; expected a positive number"),
        ("a,b,runtime_ns\n1,,nan\n", "line 2: runtime_ns is 'nan'; expected a positive"),
        ("a,b,runtime_ns\n1,,-1\n", "line 2: runtime_ns is '-1'; expected a positive"),
        ("a,b,runtime_ns\n1,true\n", "line 2: runtime_ns is 'missing'; expected a positive"),
        ("a,runtime_ns,b\n1,3\n", "line 2: column 'b' is 'missing'; expected true"),
        ("a,b,runtime_ns\n1,true,3,4\n", "line 2: has 4 values; expected 3"),
    ],
)
def test_fault_of_a_table_is_one_line(text: str, fault: str, tmp_path: Path) -> None:
    menu, path = {"a": ("", "1"), "b": ("", "true", "x,y")}, tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(PipelineError, match=re.escape(f"{path}: {fault}")):
        read_measured(path, menu)


def test_table_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    menu, path = {"a": ("", "1"), "b": ("", "true", "x,y")}, tmp_path / "runs.csv"
    path.write_bytes(
        b"\xef\xbb\xbfruntime_ns,b,a\r\n5,TRUE,1\r\n6, ,\r\n"
        b'inf,"x,y",1\r\n,true,1\r\n,,\r\n5e3,true,1\r\n'
    )
    expected = [((1, 1), 5.0), ((0, 0), 6.0), ((1, 2), np.inf), ((1, 1), 5000.0)]
    assert read_measured(path, menu) == expected


def test_command_asks_and_is_told(tmp_path: Path) -> None:
    menu, out, runs = tmp_path / "menu.toml", tmp_path / "next.csv", tmp_path / "runs.csv"
    menu.write_text("xla_a = [true, false]\nxla_b = [1, 2]\n")
    words = ("suggest", "--options", menu, "--count", 4)
    flags, table = call(*words).split("\n\n")
    assert flags.splitlines()[0] == 'XLA_FLAGS=""' and len(flags.splitlines()) == 4
    assert call(*words, "--out", out) == flags + "\n" and out.read_text() == table
    assert "exists, perhaps with runtimes" in call(*words, "--out", out, expect=2)
    lines = table.splitlines()
    runs.write_text("\n".join([lines[0], *(f"{line}{9 - n}" for n, line in enumerate(lines[1:]))]))
    told = call(*words, "--measured", runs)
    best = flags.splitlines()[-1].removeprefix('XLA_FLAGS="').removesuffix('"')
    assert told.startswith(f"best        6 ns, {best}\n")
    again = json.loads(call(*words, "--measured", runs, "--json"))
    lines = [f'XLA_FLAGS="{entry["xla_flags"]}"' for entry in again["next"]]
    rows = [f"{','.join(entry['values'].values())}," for entry in again["next"]]
    assert lines == told.splitlines()[1:5] and rows == told.splitlines()[-4:]
    assert again["best"]["runtime_ns"] == 6 and again["best"]["xla_flags"] == best
    pairs = (f"--{name}={text}" for name, text in again["best"]["values"].items() if text)
    assert " ".join(pairs) == best
    assert not {*lines} & {*flags.splitlines()}
    for more, fault in {
        ("--program", "x.npz"): "expected either --program FILE or --options FILE.toml",
        ("--run", "runs/first"): "--trust have no effect; leave them out",
    }.items():
        assert fault in stderr_of(*words, *more, expect=2)[-1]
