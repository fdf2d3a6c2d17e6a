"""Choose the compiler options to measure next, from the runtimes so far.

The owner of the hardware measures, for example an accelerator. A setting is (o,), the position of
the value of each of o options. 0 leaves the option to the compiler.

Runtimes correct a Gaussian process without a ranker (`ensembles.ranking.suggest`). In one of its
correlations each option adds a part to the logarithm of a runtime, and the others also allow
interactions. The most likely one is used.

s settings, o options, m measured settings, b candidates.
"""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import PipelineError
from common.machine import thread_limits
from common.reproducibility import generator
from common.settings import read_toml
from data.hlo.choices import Choices, Space, draw_choices
from data.hlo.compiler_options import GENES
from ensembles.picks import lowest_expected_minimum
from ensembles.ranking.suggest import MAX_CONFIGS, draw_runtimes, read_csv
from ensembles.score_errors import MAX_CANDIDATES, Floats, lowest_minimum

BUILTIN, RUNTIME = "builtin", "runtime_ns"
MAX_OPTIONS = 64
# In a space that is too large to list, candidates are children of the fastest settings.
N_PARENTS = 8
# Length scales of the correlations with interactions, in shares of options that differ.
LENGTHS = (0.3, 1.0)
_NAME, _VALUE = re.compile(r"[A-Za-z_]\w*"), re.compile(r"[\w.,:;/+*=@%-]+")

Setting = tuple[int, ...]
# Runtimes in ns by setting. inf is a compilation or a run that failed.
Runtimes = Mapping[Setting, Sequence[float]]


@dataclass(frozen=True)
class OptionMenu:
    """Options with the texts of their values. The first text is "", the compiler's own choice."""

    texts: Mapping[str, tuple[str, ...]]

    @property
    def space(self) -> Space:
        n_values = np.array([len(texts) for texts in self.texts.values()])
        return Space(n_values, np.arange(len(n_values)))

    def values(self, setting: Setting) -> dict[str, str]:
        """Return the text of each option."""
        pairs = zip(self.texts.items(), setting, strict=True)
        return {name: texts[value] for (name, texts), value in pairs}

    def flags(self, setting: Setting) -> str:
        """Return a setting as a value of XLA_FLAGS."""
        return " ".join(f"--{name}={text}" for name, text in self.values(setting).items() if text)

    def request_text(self, settings: Sequence[Setting]) -> str:
        """Return the CSV text that `read_measured` reads, still without runtimes."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow((*self.texts, RUNTIME))
        writer.writerows([(*self.values(setting).values(), "") for setting in settings])
        return text.getvalue()


def read_menu(source: str) -> OptionMenu:
    """Return the menu of a TOML file with a list of values of each option, or of `GENES`."""
    table: dict[str, Any] = {}
    if source == BUILTIN:
        for options in (options for values in GENES.values() for options in values):
            for name, value in options.items():
                table.setdefault(name, []).append(value)
    else:
        table = read_toml(Path(source))
    if not 0 < len(table) <= MAX_OPTIONS:
        expected = f"expected 1 to {MAX_OPTIONS}, such as xla_cpu_prefer_vector_width = [128, 512]"
        raise PipelineError(f"{source}: has {len(table)} options; {expected}")
    return OptionMenu({name: _texts(f"{source}: '{name}'", name, table[name]) for name in table})


def _texts(place: str, name: str, values: object) -> tuple[str, ...]:
    if not _NAME.fullmatch(name):
        raise PipelineError(f"{place}: no name of an option; expected letters, digits and _, no --")
    if not isinstance(values, list) or not values:
        raise PipelineError(f"{place}: is {values!r}; expected a list of values, such as [true]")
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    for value, text in zip(values, texts, strict=True):
        if not isinstance(value, str | int | float) or not _VALUE.fullmatch(text):
            expected = "expected true, false, a number, or a text without spaces and quotes"
            raise PipelineError(f"{place}: has the value {value!r}; {expected}")
    if len({text.lower() for text in texts}) < len(texts):
        raise PipelineError(f"{place}: repeats a value; expected different ones")
    return ("", *texts)


def read_measured(path: Path, menu: OptionMenu) -> list[tuple[Setting, float]]:
    """Return the settings and runtimes in ns of a CSV file. inf is one that failed."""
    columns, measured = (*menu.texts, RUNTIME), list[tuple[Setting, float]]()
    for place, row in read_csv(path, columns, required=columns):
        if len(row) < len(columns):
            raise PipelineError(f"{place}: has {len(row)} values; expected {len(columns)}")
        setting = []
        for name, texts in menu.texts.items():
            # A spreadsheet writes true as TRUE.
            positions = {text.lower(): position for position, text in enumerate(texts)}
            if row[name].lower() not in positions:
                expected = f"expected {', '.join(texts[1:])}, or empty for the compiler's own"
                raise PipelineError(f"{place}: column '{name}' is {row[name]!r}; {expected}")
            setting.append(positions[row[name].lower()])
        try:
            runtime_ns = float(row[RUNTIME] or "inf")
        except ValueError:
            runtime_ns = 0.0
        if not runtime_ns > 0:
            expected = "expected a positive number, or empty if it failed"
            raise PipelineError(f"{place}: {RUNTIME} is {row[RUNTIME]!r}; {expected}")
        measured.append((tuple(setting), runtime_ns))
    if not measured:
        raise PipelineError(f"{path}: has no measured settings; expected a row of each")
    return measured


def suggest_settings(menu: OptionMenu, runtimes: Runtimes, k: int, *, seed: int) -> list[Setting]:
    """Choose at most k settings to measure next, in the order of choice.

    The first batch has the compiler's own setting and diverse ones. A setting that failed counts as
    the slowest so far, because its values may be the reason.
    """
    finite = {
        setting: [ns for ns in values if ns < math.inf] for setting, values in runtimes.items()
    }
    means = {setting: float(np.mean(np.log(ns))) for setting, ns in finite.items() if ns}
    slowest, fastest = max(means.values(), default=0.0), min(means.values(), default=0.0)
    ordered = sorted(runtimes, key=lambda setting: means.get(setting, math.inf))[:MAX_CONFIGS]
    rng = generator(seed, "options")
    candidates = [s for s in _candidates(menu.space, ordered, rng) if s not in runtimes]
    if not candidates:
        return []
    log_ns = np.array([means.get(setting, slowest) - fastest for setting in ordered])
    repeats = np.array([max(1, len(finite[setting])) for setting in ordered])
    # The matrices are small, so several threads would only wait for each other.
    with thread_limits(1, "blas"):
        likenesses = option_correlations(np.array([*ordered, *candidates]))
        if not ordered:
            likeness = likenesses[-1][:MAX_CANDIDATES, :MAX_CANDIDATES]
            equal_scores = np.zeros(len(candidates), np.float32)
            picks = lowest_expected_minimum(equal_scores, likeness, 1.0, k)
        else:
            prior = np.zeros(len(ordered) + len(candidates))
            promising, draws = draw_runtimes(likenesses, prior, log_ns, repeats)
            best = np.zeros(draws.shape[1], np.float32)
            picks = promising[lowest_minimum(draws, best, [], min(k, len(draws)))]
    return [candidates[pick] for pick in picks.tolist()]


def option_correlations(settings: Choices) -> list[Floats]:
    """Return correlations of settings (s, o) to choose from, each (s, s)."""
    equal = np.mean([column[:, None] == column for column in settings.T], axis=0)
    return [equal, *(np.exp((equal - 1) / length) for length in LENGTHS)]


def _candidates(
    space: Space, ordered: Sequence[Setting], rng: np.random.Generator
) -> list[Setting]:
    """Return at most MAX_CONFIGS settings in random order, but the compiler's own one first.

    Args:
        ordered: Measured settings, sorted by runtime.
    """
    n_options = space.n_options.tolist()
    if math.prod(n_options) <= MAX_CONFIGS:
        settings = np.indices(n_options).reshape(len(n_options), -1).T
    else:
        settings = draw_choices(space, MAX_CONFIGS // 2, rng)
        parents = np.array(ordered[:N_PARENTS] or [settings[0]])
        mates = parents[rng.integers(len(parents), size=(2, MAX_CONFIGS // 2))]
        crossed = np.where(rng.random(mates.shape[1:]) < 0.5, *mates)
        children = [space.redraw(child, 1 / len(n_options), rng) for child in crossed]
        settings = np.unique([*settings, *children], axis=0)
    settings[1:] = rng.permutation(settings[1:])
    return [tuple(setting) for setting in settings.tolist()]
