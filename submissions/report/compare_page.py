"""The page of two runs compared, by graph: differences, both scores, and what keys differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.atomic import write_text
from submissions.report.charts import Pairs, comparison_charts, library
from submissions.report.render import render_page

TEMPLATE = Path(__file__).with_name("compare.html.j2")


def write_comparison_page(
    path: Path,
    names: Sequence[str],
    compared: Mapping[str, Any],
    pairs: Pairs,
    keys: Mapping[str, Sequence[object]],
) -> None:
    """Write the page, whole or not at all; the same comparison gives the same bytes.

    Args:
        names: of the first and the second run.
        compared: what `compare_reports` returns.
        pairs: scores by collection and graph, as `paired_scores` returns them.
        keys: both values of each key of the configs that differs.

    Raises:
        PipelineError: the file cannot be written.
    """
    rows: list[list[Any]] = [
        [graph, scores[1] - scores[0], collection, *scores]
        for collection, own in pairs.items()
        for graph, scores in own.items()
    ]
    rows.sort(key=lambda cells: cells[1])
    page = render_page(
        TEMPLATE,
        first=names[0],
        second=names[1],
        compared=compared,
        keys=keys,
        charts=comparison_charts(compared, pairs),
        columns=("graph", "second − first", "collection", "first", "second"),
        rows=[{"cells": cells, "href": None} for cells in rows],
        library=library(),
    )
    write_text(path, page)
