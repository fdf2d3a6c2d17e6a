"""The commands on finished runs: report, runs, compare."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from common.errors import PipelineError, blame
from common.files import missing_path
from pipeline.cli import options
from pipeline.cli.console import (
    check_output,
    command,
    print_json,
    print_table,
    say,
    show,
    tell_errors,
)

COMPARED = (
    *("collection", "metric", "graphs", "families", "first", "second"),
    *("second - first", "ci95 low", "ci95 high", "P(second better)"),
)

# Columns of Kaggle's scores, and their keys.
KAGGLE = {"public": "public_score", "private": "private_score"}


@command
def report(
    run: Annotated[Path, typer.Option(help="Folder of a finished run.")],
) -> None:
    """Draw the report of a run again.

    It writes report.html, report.png and a page for each graph.

    Example: fast-or-slow report --run runs/first
    """
    from models.run_folder import REPORT, REPORT_PICTURE
    from submissions.run_report import read_report

    check_output("--run", run / REPORT_PICTURE if run.is_dir() else None)
    content = read_report(run)
    from pipeline.run.report import draw_report

    with blame(run / REPORT, "the report of a run"):
        page = draw_report(run, content)
    show(f"report      {page}", f"picture     {page.with_name(REPORT_PICTURE)}")


@command
def runs(
    folder: Annotated[
        Path, typer.Argument(help="Folder in which run folders are searched.")
    ] = Path("runs"),
    html: Annotated[
        Path | None, typer.Option(help="Page to write, with the scores over time as a chart.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List the run folders and their scores.

    The columns public and private have Kaggle's scores, after `submission list` has read them.

    Example: fast-or-slow runs runs --html runs/runs.html
    """
    check_output("--html", html, ".html")
    rows, errors = [], []
    for path in run_folders(folder):
        try:
            rows.append(_run_row(path))
        except PipelineError as error:
            errors.append(str(error))
    if html:
        _write_runs_page(html, folder, rows)
    if json:
        print_json(rows)
    elif rows:
        names = list(dict.fromkeys(name for row in rows for name in row["values"]))
        lines = [
            (
                *(str(row["folder"]), row["state"], row["recipe"]),
                " ".join(map(str, row["seeds"])) or None,
                row["revision"] and row["revision"][:12],
                *(row["score"], *map(row.get, KAGGLE.values()), *map(row["values"].get, names)),
            )
            for row in rows
        ]
        header = ("folder", "state", "recipe", "seeds", "revision", "score", *KAGGLE, *names)
        print_table(header, lines, if_known=[*KAGGLE])
    else:
        show(f"no runs     {folder}")
    if html:
        say(f"page        {html}")
    tell_errors(errors)


def _write_runs_page(path: Path, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    from common.pages import Chart, groups_of, write_charts

    means, values = list[tuple[str, str, str, float]](), list[tuple[str, str, str, float]]()
    for row in sorted((row for row in rows if row["values"]), key=lambda row: row["finished"]):
        place = (str(row["folder"]), row["finished"])
        scores = {f"valid, mean of {len(row['values'])}": row["score"]}
        scores |= {f"Kaggle, {name}": row[key] for name, key in KAGGLE.items()}
        means += [(name, *place, score) for name, score in scores.items() if score is not None]
        values += [(name, *place, value) for name, value in row["values"].items()]
    if not values:
        raise PipelineError(f"{folder}: no run has a score; expected a finished `run` for --html")
    charts = []
    for title, points in (("Means over time", means), ("Collections over time", values)):
        data = {"groups": groups_of(points), "x": "time of the report", "y": "score, 1 is perfect"}
        last = ", ".join(f"{name} {value:.4f}" for name, *_, value in points[-5:])
        charts.append(Chart("points", title, f"last scores: {last}", data))
    note = "Point at a mark to see its run. The command submission list reads Kaggle's scores."
    write_charts(path, f"Runs in {folder}", note, charts)


def run_folders(folder: Path) -> Iterator[Path]:
    """List the run folders in a folder, but not those of models in a run folder."""
    from models.run_folder import CONFIG

    if not folder.is_dir():
        raise missing_path(folder, "a folder with run folders")
    if (folder / CONFIG).is_file():
        yield folder
        return
    # A link may lead to a folder above it.
    for path in sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink()):
        yield from run_folders(path)


def _run_row(folder: Path) -> dict[str, Any]:
    from models.run_folder import CONFIG, REPORT, is_done, read_config
    from pipeline.run.state import SUBMISSION
    from submissions.run_report import read_report
    from submissions.sent import read_sent

    with blame(folder / CONFIG, "the config of a run"):
        config = read_config(folder)
        recipe = config.get("recipe", {})
        seeds = [config["seed"]] if "seed" in config else list(recipe.get("seeds", ()))
        name = recipe.get("name")
    path = folder / REPORT
    report = read_report(folder) if "space" not in config and path.exists() else None
    parts = report.collections if report else {}
    sent = read_sent(folder / SUBMISSION["test"])
    return {
        "folder": folder,
        "state": "done" if is_done(folder) else "unfinished",
        "recipe": name,
        "seeds": seeds,
        "revision": report and report.revision,
        "score": report and report.score,
        "values": {key: part.value for key, part in parts.items() if part.value is not None},
        "finished": report and f"{datetime.fromtimestamp(path.stat().st_mtime):%Y-%m-%d %H:%M:%S}",
        **{key: sent and getattr(sent, key) for key in KAGGLE.values()},
    }


@command
def compare(
    first: Annotated[
        Path, typer.Argument(help="Run folder, or a file with the output of `score --json`.")
    ],
    second: Annotated[Path, typer.Argument(help="Run folder or file to compare with the first.")],
    json: options.Json = False,
) -> None:
    """Compare two runs graph by graph.

    It prints the recipe keys that differ, the difference of the scores with its interval, and the
    probability that the second run is better.

    Example: fast-or-slow compare runs/first runs/hops2
    """
    from data.tree import KINDS
    from models.registry import MODELS
    from models.run_folder import flat
    from submissions.compare import compare_reports
    from submissions.run_report import read_report

    reports = [read_report(run) for run in (first, second)]
    with blame(f"{first} or {second}", "the reports of two runs"):
        comparison = compare_reports(*reports)
        before, after = (dict(flat(report.config)) for report in reports)
        differing = {
            key: [before.get(key), after.get(key)]
            for key in sorted(before | after)
            if before.get(key) != after.get(key)
        }
        names = (
            values.get(f"recipe.{k}.models") or () for values in (before, after) for k in KINDS
        )
        idle = tuple(f"recipe.{name}." for name in MODELS.keys() - {*chain(*names)})
        keys = {key: values for key, values in differing.items() if not key.startswith(idle)}
        if json:
            print_json({"first": first, "second": second, "config": keys, **comparison})
            return
        show(f"first = {first}, second = {second}")
        if keys:
            print_table(("key", "first", "second"), [(key, *keys[key]) for key in keys])
            show("")
        elif all(report.config for report in reports):
            show("no key of their configs differs")
        if n_idle := len(differing) - len(keys):
            show(f"{n_idle} keys of unused models differ too")
        _print_comparison(comparison)


def _print_comparison(comparison: Mapping[str, Any]) -> None:
    from submissions.compare import comparison_notes, probability_texts

    rows, texts = [], probability_texts(comparison)
    for name, entry in {**comparison["collections"], "mean": comparison["mean"]}.items():
        label = f"mean of {len(comparison['collections'])}" if name == "mean" else name
        counts = (entry.get("metric", ""), entry.get("n_graphs"), entry.get("n_families"))
        values = (entry["first"], entry["second"], entry["difference"])
        interval = entry["ci95"] or (None, None)
        probability = (texts[name] or "-").rjust(len(COMPARED[-1]))
        rows.append((label, *counts, *values, *interval, probability))
    print_table(COMPARED, rows)
    for note in comparison_notes(comparison):
        say(f"note: {note}")
