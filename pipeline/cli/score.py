"""The command `score`: judge submissions by measured runtimes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli.console import DataDir, Debug, Json, command, data_dir, print_json, say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from submissions.labels import Labels

Report = dict[str, Any]
Indices = Mapping[str, "NDArray[np.int64]"]

SubmissionFiles = Annotated[
    list[Path],
    typer.Option(help="The rankings to judge; repeated, one recipe's from several seeds."),
]
Against = Annotated[
    Path | None, typer.Option(help="Other rankings: how much better than these, graph by graph.")
]
SubsetPath = Annotated[
    Path | None,
    typer.Option(
        help="Judge the layout configs listed there only: xla_default.json or the like of the "
        "dataset's eval_indices, or a folder of them. They count the rows of the authors' files."
    ),
]
Ceiling = Annotated[
    bool,
    typer.Option(
        help="Say how well a second measurement ranks the configs that were measured twice. "
        "Costs packing the split's layout graphs once, where the store has none: the time to read "
        "the files whole, and disk, as `prepare` does."
    ),
]


@command
def score(
    submission: SubmissionFiles,
    data: DataDir = None,
    split: Annotated[str, typer.Option(help="Which split the rankings answer.")] = "valid",
    private: Annotated[
        bool, typer.Option("--private", help="Judge by the withheld test runtimes.")
    ] = False,
    against: Against = None,
    subset: SubsetPath = None,
    ceiling: Ceiling = True,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Judge a submission by measured runtimes.

    Example: python -m pipeline score --submission runs/first/submission-valid.csv --data DIR
    """
    if against is not None and len(submission) > 1:
        raise UsageError("--against: expected one --submission to compare with it")
    files = submission if against is None else [*submission, against]
    if len({path.resolve() for path in files}) < len(files):
        raise UsageError("--submission: the same file is given twice; expected each once")
    from pipeline.cli.tables import print_comparison, print_scores, print_seeds
    from submissions.compare import compare_reports
    from submissions.labels import labels_of
    from submissions.subsets import read_subsets

    folder, split = data_dir(data), "test" if private else split
    labels = labels_of(folder, split=split, private=private)
    subsets = {} if subset is None else read_subsets(subset)
    reports = _judged_files(files, labels, subsets, folder, split, ceiling=ceiling)
    if not any(known.is_labelled for known in labels.values()):
        say(f"{folder}: the runtimes of split {split} are withheld; --private reads the sample's")
    if len(submission) > 1:
        print_seeds(submission, reports, json=json)
        return
    compared: Report = {}
    if against is not None:
        compared = {"first": str(against), "second": str(submission[0])}
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
    subsets: Indices,
    folder: Path,
    split: str,
    *,
    ceiling: bool,
) -> list[Report]:
    from submissions.labels import check_split
    from submissions.score import score_submission
    from submissions.subsets import restrict, subset_remarks
    from submissions.write import read_submission

    kept = []
    for file in files:
        with _naming(file):
            rankings = read_submission(file)
            check_split(rankings, labels, folder, split=split)
            kept.append(restrict(rankings, labels, subsets))
    for line in subset_remarks(labels, subsets):
        say(line)
    answered = {name for rankings, _ in kept for name in rankings}
    ceilings = _ceilings(folder, split, answered, labels, subsets) if ceiling else None
    reports = []
    for file, (rankings, kept_labels) in zip(files, kept, strict=True):
        with _naming(file):
            reports.append(score_submission(rankings, kept_labels, ceilings=ceilings))
    return reports


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    try:
        yield
    except PipelineError as error:
        line = str(error).removeprefix("submission: ")
        raise PipelineError(line if line == str(error) else f"{file}: {line}") from error


def _ceilings(
    folder: Path,
    split: str,
    answered: set[str],
    labels: Mapping[str, "Labels"],
    subsets: Indices,
) -> dict[str, float] | None:
    """Measure the noise ceilings of the layout collections that are judged.

    They are no condition of the scores: where they cannot be had, say why, and return None.
    """
    from data.graph_store.prepare import stored_graphs
    from data.tree import LAYOUT_COLLECTIONS
    from submissions.labels import read_ceilings

    known = {name for name in answered if name in labels and labels[name].is_labelled}
    needed = [c for c in LAYOUT_COLLECTIONS if any(n.startswith(f"{c.name}:") for n in known)]
    if not needed:
        return {}
    try:
        files = stored_graphs(folder, collections=needed, splits=(split,))
        return read_ceilings(files, labels, subsets=subsets)
    except PipelineError as error:
        say(f"no noise ceilings: {' '.join(str(error).split())}")
        return None


def _print_graphs(report: Report) -> None:
    for name, part in report["collections"].items():
        for graph, figures in part["per_graph"].items():
            typer.echo(f"{name}:{graph}  {part['metric']} {figures[part['metric']]:.4f}")
    for item in report["left_out"]:
        typer.echo(f"left out: {item['graph']}: {item['reason']}")
