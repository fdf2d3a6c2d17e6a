"""What a search's pictures show, each drawn on the axes it is given: nothing here makes files."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.tuning.objectives import pareto_front
from pipeline.tuning.report.study import Search
from pipeline.tuning.result import TrialRecord
from pipeline.tuning.space import Choices, Range, SearchSpace, Value
from submissions.report.pictures import CEILING, FAINT, FLOOR, INK, MARKS, OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = "viridis"  # dark to bright: low to high values
STATES = (("pruned", FAINT), ("fail", FLOOR))


def short(key: str) -> str:
    """Return the last part of a dotted key, which is what people call it."""
    return key.rsplit(".", 1)[-1]


def told(value: Value) -> str:
    """Return a parameter's value as people write it, in few letters."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def draw_history(axes: "Axes", search: Search) -> None:
    """Draw each trial's value, the best so far, the baseline, and which trials have none."""
    complete = search.complete
    numbers = [trial.number for trial in complete]
    values = np.array([trial.value for trial in complete], dtype=float)
    axes.plot(numbers, values, "o", color=OURS, markersize=MARKS, label="trial")
    if complete:
        axes.step(
            numbers, np.maximum.accumulate(values), where="post", color=INK, label="best so far"
        )
    for trial in complete:
        if trial.is_baseline and trial.value is not None:
            axes.axhline(trial.value, color=CEILING, linestyle="--", label="baseline")
    foot = axes.get_xaxis_transform()  # marks of trials without value stand on the axis
    for state, colour in STATES:
        own = [trial.number for trial in search.trials if trial.state == state]
        if own:
            axes.plot(
                own,
                [0.02] * len(own),
                "x",
                color=colour,
                transform=foot,
                clip_on=False,
                label=state,
            )
    axes.set_xlabel("trial")
    axes.set_ylabel("held-out value")
    axes.legend(frameon=False, fontsize=7)


def draw_importances(axes: "Axes", shares: Mapping[str, float]) -> None:
    """Draw which parameter the values depend on, the most important one on top."""
    names = [short(key) for key in shares]
    axes.barh(range(len(names)), [100 * s for s in shares.values()], color=OURS, alpha=0.4)
    # Names stand on the bars: beside them, the longer ones would be cut off.
    axes.set_yticks(range(len(names)), names, fontsize=6 if len(names) > 8 else 8, ha="left")
    axes.tick_params(axis="y", length=0, pad=-4)
    axes.set_axisbelow(True)
    axes.invert_yaxis()
    axes.set_xlabel("share of the variance, %")


def draw_front(axes: "Axes", trials: Sequence[TrialRecord], unit: str) -> None:
    """Draw values over their costs, and the line of those that nothing beats in both."""
    front = pareto_front(trials)
    for own, mark, colour in ((trials, "o", FAINT), (front, "o-", OURS)):
        costs, values = [trial.cost or 0.0 for trial in own], [trial.value or 0.0 for trial in own]
        axes.plot(costs, values, mark, color=colour, markersize=MARKS)
    for trial in front:
        end, above = (trial.cost or 0.0, trial.value or 0.0), (4, 4)
        axes.annotate(str(trial.number), end, above, textcoords="offset points", fontsize=7)
    axes.set_xlabel(unit)
    axes.set_ylabel("held-out value")


def place(parameter: Choices | Range, value: Value) -> float:
    """Return where a value lies in its range, from 0 to 1; choices in their order."""
    if isinstance(parameter, Choices):
        return parameter.choices.index(value) / max(1, len(parameter.choices) - 1)
    low, high, own = float(parameter.low), float(parameter.high), float(value)
    if parameter.log:
        low, high, own = math.log(low), math.log(high), math.log(own)
    return 0.5 if high == low else (own - low) / (high - low)


def draw_parallel(axes: "Axes", space: SearchSpace, trials: Sequence[TrialRecord]) -> None:
    """Draw each trial as a line through its parameters' places, bright where its value is high.

    At the feet and heads of the axes stand the least and greatest values; a colour key beside them.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    values = [trial.value or 0.0 for trial in trials]
    low, high = min(values), max(values)
    for trial, value in sorted(zip(trials, values, strict=True), key=lambda pair: pair[1]):
        own = [
            (i, place(parameter, trial.params[key]))
            for i, (key, parameter) in enumerate(space.parameters.items())
            if key in trial.params
        ]
        share = 0.5 if high == low else (value - low) / (high - low)
        axes.plot(*zip(*own, strict=True), "-", color=colormaps[COLOURS](share), alpha=0.8)
    axes.set_xticks(range(len(space.parameters)), [])
    paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1.0}
    for i, key in enumerate(space.parameters):
        axes.text(i, 0.02, short(key), rotation=90, ha="right", va="bottom", fontsize=6, bbox=paper)
    for i, parameter in enumerate(space.parameters.values()):
        least, greatest = map(told, (parameter.ends()[0], parameter.ends()[-1]))
        axes.text(i, -0.07, least, ha="center", va="top", fontsize=6)
        axes.text(i, 1.07, greatest, ha="center", va="bottom", fontsize=6)
    axes.set_yticks([])
    colour_key = ScalarMappable(Normalize(low, high if high > low else low + 1e-9), COLOURS)
    bar = axes.figure.colorbar(colour_key, ax=axes, pad=0.1, fraction=0.04, label="held-out value")
    bar.ax.yaxis.set_ticks_position("left")  # on the right they would leave the picture
    bar.ax.yaxis.set_label_position("left")


def draw_slice(
    axes: "Axes", key: str, parameter: Choices | Range, trials: Sequence[TrialRecord]
) -> None:
    """Draw values over one parameter; later trials darker."""
    own = [trial for trial in trials if key in trial.params]
    if isinstance(parameter, Choices):
        places = [float(parameter.choices.index(trial.params[key])) for trial in own]
        axes.set_xticks(range(len(parameter.choices)), [str(c) for c in parameter.choices])
        axes.tick_params(axis="x", labelsize=7)
    else:
        places = [float(trial.params[key]) for trial in own]
        if parameter.log:
            axes.set_xscale("log")
    numbers = [trial.number for trial in own]
    axes.scatter(
        places, [trial.value or 0.0 for trial in own], c=numbers, cmap="Blues", vmin=-max(numbers)
    )
    axes.set_xlabel(short(key))
    axes.set_ylabel("held-out value")
