"""Choose the compiler options to measure next, from the runtimes so far.

The owner of the hardware measures, for example an accelerator. Runtimes correct a Gaussian process
without a ranker (`ensembles.ranking.suggest`). In one of its correlations each option adds a part
to the logarithm of a runtime, and the others also allow interactions. The most likely one is used.

s settings, o options.
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import PipelineError
from common.files import missing_path
from common.machine import thread_limits
from common.reproducibility import generator
from common.settings import read_toml
from data.hlo.choices import Choices, Space, draw_choices
from data.hlo.compiler_options import GENES
from ensembles.picks import lowest_expected_minimum
from ensembles.ranking.suggest import MAX_CONFIGS, draw_runtimes, read_csv
from ensembles.score_errors import MAX_CANDIDATES, Floats, lowest_minimum

BUILTIN, RUNTIME, MAX_OPTIONS = "builtin", "runtime_ns", 64
# In a space that is too large to list, candidates are children of the fastest settings.
N_PARENTS = 8
# Length scales of the correlations with interactions, in shares of options that differ.
LENGTHS = (0.3, 1.0)
_NAME, _VALUE = re.compile(r"[A-Za-z_]\w*"), re.compile(r"[\w.,:;/+*=@%-]+")

# Texts of the values of each option. The first text is "", the compiler's own choice.
Menu = Mapping[str, tuple[str, ...]]
# Position of the value of each option, (o,).
Setting = tuple[int, ...]
# Runtimes in ns by setting. inf is a compilation or a run that failed.
Runtimes = Mapping[Setting, Sequence[float]]


def read_menu(source: str) -> Menu:
    """Return the menu of a TOML file with a list of values of each option, or of `GENES`."""
    table: dict[str, Any] = {}
    if source != BUILTIN:
        if not Path(source).exists():
            raise missing_path(Path(source), f"a TOML file, or {BUILTIN}")
        table = read_toml(Path(source))
    for options in (options for values in GENES.values() for options in values):
        for name, value in options.items() if source == BUILTIN else ():
            table.setdefault(name, []).append(value)
    if not 0 < len(table) <= MAX_OPTIONS:
        expected = f"expected 1 to {MAX_OPTIONS}, such as xla_cpu_prefer_vector_width = [128, 512]"
        raise PipelineError(f"{source}: has {len(table)} options; {expected}")
    menu = {}
    for name, values in table.items():
        texts = [str(value) for value in values] if isinstance(values, list) else []
        texts = [text.lower() if text in ("True", "False") else text for text in texts]
        is_valid = _NAME.fullmatch(name) and texts and all(map(_VALUE.fullmatch, texts))
        is_valid = is_valid and name != RUNTIME
        if not is_valid or len({text.lower() for text in texts}) < len(texts):
            expected = "expected a name without -- and a list of different values without spaces"
            fault = f"'{name}' is {values!r}; {expected}, such as [true, 128]"
            raise PipelineError(f"{source}: {fault}")
        menu[name] = ("", *texts)
    return menu


def option_values(menu: Menu, setting: Setting) -> dict[str, str]:
    """Return the text of each option's value, as in a row of the CSV file."""
    pairs = zip(menu.items(), setting, strict=True)
    return {name: texts[value] for (name, texts), value in pairs}


def option_flags(menu: Menu, setting: Setting) -> str:
    """Return a setting as a value of XLA_FLAGS."""
    values = option_values(menu, setting).items()
    return " ".join(f"--{name}={text}" for name, text in values if text)


def request_text(menu: Menu, settings: Sequence[Setting]) -> str:
    """Return the CSV text that `read_measured` reads, still without runtimes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*menu, RUNTIME))
    for setting in settings:
        writer.writerow((*option_values(menu, setting).values(), ""))
    return text.getvalue()


def read_measured(path: Path, menu: Menu) -> list[tuple[Setting, float]]:
    """Return the settings and runtimes in ns of the measured rows of a CSV file. inf has failed."""
    columns, measured = (*menu, RUNTIME), []
    for place, row in read_csv(path, columns, required=columns):
        setting = []
        for name, texts in menu.items():
            # A spreadsheet writes true as TRUE.
            positions = {text.lower(): position for position, text in enumerate(texts)}
            text = row.get(name, "missing")
            if text.lower() not in positions:
                expected = f"expected {', '.join(texts[1:])}, or empty for the compiler's own"
                raise PipelineError(f"{place}: column '{name}' is {text!r}; {expected}")
            setting.append(positions[text.lower()])
        if not (text := row.get(RUNTIME, "missing")):
            continue
        try:
            runtime_ns = float(text)
        except ValueError:
            runtime_ns = 0.0
        if not runtime_ns > 0:
            expected = (
                "expected a positive number, inf if it failed, or empty if it was not measured"
            )
            raise PipelineError(f"{place}: {RUNTIME} is {text!r}; {expected}")
        measured.append((tuple(setting), runtime_ns))
    return measured


def suggest_settings(menu: Menu, runtimes: Runtimes, k: int, *, seed: int) -> list[Setting]:
    """Choose at most k settings to measure next, in the order of choice.

    The first batch has the compiler's own setting and diverse ones. A setting that failed counts as
    the slowest so far, because its values may be the reason. If two or more measurements of a value
    failed and none ran, the settings with this value come last.
    """
    outcomes: dict[tuple[int, int], list[float]] = {}
    for setting, values in runtimes.items():
        for option_value in enumerate(setting):
            outcomes.setdefault(option_value, []).extend(values)
    failing = {v for v, ns in outcomes.items() if len(ns) > 1 and min(ns) == math.inf}
    ordered = sorted(runtimes, key=lambda setting: _mean_log(runtimes[setting]))[:MAX_CONFIGS]
    n_values = [len(texts) for texts in menu.values()]
    candidates = [s for s in _candidates(n_values, ordered, seed) if s not in runtimes]
    safe = [setting for setting in candidates if failing.isdisjoint(enumerate(setting))]
    chosen = _choose(safe, ordered, runtimes, k)
    if len(chosen) == len(safe):
        risky = [setting for setting in candidates if not failing.isdisjoint(enumerate(setting))]
        chosen += _choose(risky, ordered, runtimes, k - len(chosen))
    return chosen


def _mean_log(values: Sequence[float]) -> float:
    """Return the mean logarithm of the runtimes that are finite; inf without any."""
    logs = [math.log(ns) for ns in values if ns < math.inf]
    return sum(logs) / len(logs) if logs else math.inf


def _choose(
    candidates: Sequence[Setting], ordered: Sequence[Setting], runtimes: Runtimes, k: int
) -> list[Setting]:
    """Choose at most k candidates, given measured settings sorted by runtime."""
    if not candidates or k < 1:
        return []
    means = [_mean_log(runtimes[setting]) for setting in ordered]
    slowest = max((mean for mean in means if mean < math.inf), default=0.0)
    log_ns = np.minimum(means, slowest) - min([*means, slowest])
    repeats = [sum(ns < math.inf for ns in runtimes[setting]) for setting in ordered]
    # The matrices are small, so several threads would only wait for each other.
    with thread_limits(1, "blas"):
        likenesses = option_correlations(np.array([*ordered, *candidates]))
        prior = np.zeros(len(likenesses[0]))
        if ordered:
            repeated = np.maximum(repeats, 1)
            promising, draws = draw_runtimes(likenesses, prior, log_ns, repeated)
            best = np.zeros(draws.shape[1], np.float32)
            picks = promising[lowest_minimum(draws, best, [], min(k, len(draws)))]
        else:
            likeness = likenesses[-1][:MAX_CANDIDATES, :MAX_CANDIDATES]
            picks = lowest_expected_minimum(prior.astype(np.float32), likeness, 1.0, k)
    return [candidates[pick] for pick in picks.tolist()]


def option_correlations(settings: Choices) -> list[Floats]:
    """Return correlations of settings (s, o) to choose from, each (s, s)."""
    equal = np.mean([column[:, None] == column for column in settings.T], axis=0)
    return [equal, *(np.exp((equal - 1) / length) for length in LENGTHS)]


def _candidates(n_values: Sequence[int], ordered: Sequence[Setting], seed: int) -> list[Setting]:
    """Return at most MAX_CONFIGS settings in random order, but the compiler's own one first.

    Args:
        n_values: Number of values of each option, (o,).
        ordered: Measured settings, sorted by runtime.
    """
    rng = generator(seed, "options")
    if math.prod(n_values) <= MAX_CONFIGS:
        settings = np.indices(n_values).reshape(len(n_values), -1).T
    else:
        space = Space(np.array(n_values), np.arange(len(n_values)))
        settings = draw_choices(space, MAX_CONFIGS // 2, rng)
        parents = np.array(ordered[:N_PARENTS] or [settings[0]])
        mates = parents[rng.integers(len(parents), size=(2, MAX_CONFIGS // 2))]
        crossed = np.where(rng.random(mates.shape[1:]) < 0.5, *mates)
        children = [space.redraw(child, 1 / len(n_values), rng) for child in crossed]
        settings = np.unique([*settings, *children], axis=0)
    settings[1:] = rng.permutation(settings[1:])
    return [tuple(setting) for setting in settings.tolist()]
