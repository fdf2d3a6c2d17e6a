"""The command `score`, and how scores are printed: of one submission, of two runs compared."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import PipelineError
from pipeline.cli.console import DataDir, Json, command, data_dir, print_json, print_table, say

if TYPE_CHECKING:
    from submissions.labels import Labels

Report = dict[str, Any]

COMPARED = (
    *("collection", "metric", "graphs", "families", "first", "second"),
    *("second - first", "ci95 low", "ci95 high", "P(second better)"),
)


@command
def score(
    submission: Annotated[Path, typer.Option(help="The rankings to judge.")],
    data: DataDir = None,
    split: Annotated[str, typer.Option(help="Which split the rankings answer.")] = "valid",
    private: Annotated[
        bool, typer.Option("--private", help="Judge by the withheld test runtimes.")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="Other rankings: how much better than these, by graph.")
    ] = None,
    ceiling: Annotated[
        bool, typer.Option(help="How well a second measurement ranks; packs layout graphs once.")
    ] = True,
    json: Json = False,
) -> None:
    """Judge a submission by measured runtimes.

    Example: python -m pipeline score --submission runs/first/submission-valid.csv --data DIR
    """
    files = [submission] if against is None else [submission, against]
    from submissions.compare import compare_reports
    from submissions.labels import labels_of

    folder, split = data_dir(data), "test" if private else split
    labels = labels_of(folder, split=split, private=private)
    reports = _judged_files(files, labels, folder, split, ceiling=ceiling)
    if not any(known.is_labelled for known in labels.values()):
        say(f"{folder}: the runtimes of split {split} are withheld; --private reads the sample's")
    compared: Report = {}
    if against is not None:
        compared = {"first": str(against), "second": str(submission)}
        compared |= compare_reports(reports[1], reports[0])
    if json:
        print_json({**reports[0], "comparison": compared} if compared else reports[0])
        return
    _print_graphs(reports[0])
    print_scores(reports[0])
    if compared:
        typer.echo(f"\nfirst: {compared['first']}, second: {compared['second']}")
        print_comparison(compared)


def _judged_files(
    files: Sequence[Path],
    labels: Mapping[str, "Labels"],
    folder: Path,
    split: str,
    *,
    ceiling: bool,
) -> list[Report]:
    from data.tree import find_graphs
    from submissions.labels import check_split, cut_to_samples
    from submissions.score import note_samples, score_submission
    from submissions.write import read_submission

    rankings = []
    for file in files:
        with _naming(file):
            rankings.append(read_submission(file))
            check_split(rankings[-1], labels, folder, split=split)
    answered = {name for own in rankings for name in own}
    ceilings = _ceilings(folder, split, answered, labels) if ceiling else None
    graphs = [] if split == "test" else find_graphs(folder, splits=(split,))
    reports = []
    for file, own in zip(files, rankings, strict=True):
        with _naming(file):
            cut = cut_to_samples(graphs, own, labels)
            reports.append(score_submission(*cut, ceilings=ceilings))
            note_samples(reports[-1], labels)
    return reports


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    try:
        yield
    except PipelineError as error:
        line = str(error).removeprefix("submission: ")
        raise PipelineError(line if line == str(error) else f"{file}: {line}") from error


def _ceilings(
    folder: Path, split: str, answered: set[str], labels: Mapping[str, "Labels"]
) -> dict[str, float] | None:
    """Measure the noise ceilings of what is judged; where they cannot be had, say why."""
    from data.graph_store.prepare import stored_graphs
    from data.tree import LAYOUT_COLLECTIONS
    from submissions.labels import read_ceilings

    known = {name for name in answered if name in labels and labels[name].is_labelled}
    needed = [c for c in LAYOUT_COLLECTIONS if any(n.startswith(f"{c.name}:") for n in known)]
    if not needed:
        return {}
    try:
        files = stored_graphs(folder, collections=needed, splits=(split,))
        return read_ceilings(files, labels)
    except PipelineError as error:
        say(f"no noise ceilings: {' '.join(str(error).split())}")
        return None


def _print_graphs(report: Report) -> None:
    for name, part in report["collections"].items():
        for graph, figures in part["per_graph"].items():
            typer.echo(f"{name}:{graph}  {part['metric']} {figures[part['metric']]:.4f}")
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


def print_comparison(compared: Mapping[str, Any]) -> None:
    """Print what `compare_reports` found: a row per collection, and their mean."""
    rows = []
    mean = f"mean of {len(compared['collections'])}"
    for name, entry in {**compared["collections"], mean: compared["mean"]}.items():
        counts = (entry.get("metric", ""), entry.get("n_graphs"), entry.get("n_families"))
        values = (entry["first"], entry["second"], entry["difference"])
        interval = entry["ci95"] or (None, None)
        rows.append((name, *counts, *values, *interval, entry["probability"]))
    print_table(COMPARED, rows)
    for name, entry in compared["collections"].items():
        if entry["only_in_one"]:
            say(f"{name}: {entry['only_in_one']} graphs that only one of the two has judged")
    alone = [name for name, entry in compared["collections"].items() if entry["ci95"] is None]
    if alone:
        say(f"no interval, nor one of the mean: graphs of one family alone in {', '.join(alone)}")
