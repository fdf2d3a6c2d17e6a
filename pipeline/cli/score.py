"""The command `score`: judge submissions by measured runtimes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Collection as Container
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli.console import (
    DataDir,
    Debug,
    Json,
    command,
    data_dir,
    print_json,
    say,
)

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
    if len({path.resolve() for path in submission}) < len(submission):
        raise UsageError("--submission: the same file is given twice; expected each once")
    from pipeline.cli.tables import print_seeds
    from submissions.labels import check_split, labels_of
    from submissions.subsets import read_subsets

    folder = data_dir(data)
    labels = labels_of(folder, split=split, private=private)
    subsets = {} if subset is None else read_subsets(subset)
    files = submission if against is None else [*submission, against]
    check = partial(check_split, judged=labels, data_dir=folder, split=split, private=private)
    place = (folder, "test" if private else split) if ceiling else None
    reports = _judged_files(files, labels, subsets, place, check)
    if not any(known.is_labelled for known in labels.values()):
        say(f"{folder}: the runtimes of split {split} are withheld; --private reads the sample's")
    if len(submission) > 1:
        print_seeds(submission, reports, json=json)
    else:
        compared = None if against is None else _compared(against, submission[0], reports)
        _print_report(reports[0], compared, json=json)


def _judged_files(
    files: Sequence[Path],
    labels: Mapping[str, "Labels"],
    subsets: Indices,
    place: tuple[Path, str] | None,
    check: Callable[[Container[str]], None],
) -> list[Report]:
    """Score submissions by the same labels.

    Args:
        place: the data folder and the split whose graphs tell the noise ceilings; None for none.
        check: given the submission IDs that a file answers; raises where they are another split's.

    Raises:
        PipelineError: a file cannot be read, answers another split, or a ranking does not fit its
            graph.
    """
    from submissions.score import score_submission
    from submissions.subsets import restrict, subset_remarks
    from submissions.write import read_submission

    kept = []
    for file in files:
        with _naming(file):
            rankings = read_submission(file)
            check(rankings)
            kept.append(restrict(rankings, labels, subsets))
    for line in subset_remarks(labels, subsets):
        say(line)
    ceilings = None
    if place is not None:
        answered = {name for rankings, _ in kept for name in rankings}
        ceilings = _ceilings(*place, answered, labels, subsets)
    reports = []
    for file, (rankings, kept_labels) in zip(files, kept, strict=True):
        with _naming(file):
            reports.append(score_submission(rankings, kept_labels, ceilings=ceilings))
    return reports


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Name the submission's file in errors about a ranking that does not fit its graph."""
    try:
        yield
    except PipelineError as error:
        line = str(error)
        if not line.startswith("submission: "):
            raise
        raise PipelineError(f"{file}: {line.removeprefix('submission: ')}") from error


def _ceilings(
    folder: Path,
    split: str,
    answered: set[str],
    labels: Mapping[str, "Labels"],
    subsets: Indices,
) -> dict[str, float] | None:
    """Measure the noise ceilings of the layout collections that are judged.

    They are no condition of the scores: where they cannot be had, say why, and return None.

    Args:
        answered: the submission IDs that rankings were given for.
    """
    from data.graph_store.prepare import stored_graphs
    from data.tree import LAYOUT_COLLECTIONS
    from submissions.ceilings import read_ceilings

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


def _compared(against: Path, submission: Path, reports: Sequence[Report]) -> Report:
    """Compare the submission's report, the first, with that of `against`."""
    from submissions.compare import compare_reports

    compared = compare_reports(reports[1], reports[0])
    return {"first": str(against), "second": str(submission), **compared}


def _print_report(report: Report, compared: Report | None, *, json: bool) -> None:
    from pipeline.cli.tables import print_comparison, print_scores

    if json:
        print_json(report if compared is None else {**report, "comparison": compared})
        return
    for name, part in report["collections"].items():
        for graph, figures in part["per_graph"].items():
            value = figures["tile_score" if name.startswith("tile") else "kendall_tau"]
            typer.echo(f"{name}:{graph}  {part['metric']} {value:.4f}")
    for item in report["left_out"]:
        typer.echo(f"left out: {item['graph']}: {item['reason']}")
    print_scores(report)
    if compared is not None:
        typer.echo(f"\nfirst: {compared['first']}, second: {compared['second']}")
        print_comparison(compared)
