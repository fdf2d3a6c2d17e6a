"""The command `score`, and how scores are printed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import PipelineError
from pipeline.cli.console import DataDir, Json, command, data_dir, print_json, print_table, say

Report = dict[str, Any]


@command
def score(
    submission: Annotated[Path, typer.Option(help="The rankings to judge.")],
    data: DataDir = None,
    split: Annotated[str, typer.Option(help="Which split the rankings answer.")] = "valid",
    private: Annotated[
        bool, typer.Option("--private", help="Judge by the withheld test runtimes.")
    ] = False,
    json: Json = False,
) -> None:
    """Judge a submission by measured runtimes.

    Example: python -m pipeline score --submission runs/first/submission-valid.csv --data DIR
    """
    from data.tree import find_graphs
    from submissions.labels import check_split, cut_to_samples, read_labels
    from submissions.score import note_samples, score_submission
    from submissions.write import read_submission

    folder, split = data_dir(data), "test" if private else split
    labels = read_labels(folder, split, private=private)
    try:
        rankings = read_submission(submission)
        check_split(submission, rankings, labels, folder, split=split)
        graphs = [] if split == "test" else find_graphs(folder, splits=(split,))
        report = score_submission(*cut_to_samples(graphs, rankings, labels))
    except PipelineError as error:
        line = str(error).removeprefix("submission: ")
        raise PipelineError(line if line == str(error) else f"{submission}: {line}") from error
    note_samples(report, labels)
    if private:
        _name_programs(report, folder)
    if not any(known.is_labelled for known in labels.values()):
        raise PipelineError(f"{folder}: {split} has no runtimes; --private reads the sample's")
    if json:
        print_json(report)
        return
    _print_graphs(report)
    print_scores(report)


def _name_programs(report: Report, folder: Path) -> None:
    """Say which program each graph is, whose name in the test split hides it, if that is known."""
    from data.collect.manifest import read_manifest

    measured = read_manifest(folder)["graphs"]
    for name, part in report["collections"].items():
        for graph, figures in part["per_graph"].items():
            if f"{name}:{graph}" in measured:
                figures["program"] = measured[f"{name}:{graph}"]["program"]


def _print_graphs(report: Report) -> None:
    for name, part in report["collections"].items():
        for graph, figures in part["per_graph"].items():
            shown = figures.get("program", graph)
            typer.echo(f"{name}:{shown}  {part['metric']} {figures[part['metric']]:.4f}")
    for item in report["left_out"]:
        typer.echo(f"left out: {item['graph']}: {item['reason']}")


def print_scores(report: Mapping[str, Any]) -> None:
    """Print a report's value by collection, then the mean; what they hide, on standard error."""
    rows = []
    for name, part in report["collections"].items():
        low, high = part["ci95"] or (None, None)
        facts = (part["n_graphs"], part.get("floor"), part.get("noise_ceiling"))
        rows.append((name, part["metric"], part["value"], low, high, *facts))
    judged = sum(row[2] is not None for row in rows)
    mean = "mean" if judged == len(rows) else f"mean of {judged} of {len(rows)}"
    rows.append((mean, "", report["score"], None, None, sum(row[5] for row in rows), None, None))
    header = ("collection", "metric", "value", "ci95 low", "ci95 high", "graphs")
    print_table((*header, "floor", "ceiling"), rows, if_known=("floor", "ceiling"))
    from submissions.score import remarks_on

    for line in remarks_on(report):
        say(f"note: {line}")
