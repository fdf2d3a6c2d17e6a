"""The command line: `python -m pipeline COMMAND …`. Thin: it parses, calls a stage, prints."""

from pathlib import Path
from typing import Annotated

import typer

from console import Debug, Json, Seed, command, print_json, print_table, progress_bar, say
from data.collect.commands import collect
from kernels.commands import app as kernel_app
from submissions.commands import app as submission_app

app = typer.Typer(
    help="Rank XLA compiler configs from fastest to slowest: TpuGraphs, end to end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(submission_app, name="submission")
app.add_typer(kernel_app, name="kernel")

DataDir = Annotated[
    Path | None,
    typer.Option("--data", help="Folder that holds npz/. Default: PIPELINE_DATA, Kaggle's mount."),
]
RecipeName = Annotated[
    str, typer.Option("--recipe", help="Name of a recipe in configs/, or a .toml file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key; may be repeated."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was begun there.")]
CollectionName = Annotated[str, typer.Option("--collection", help="Such as layout:xla:default.")]


def _data_dir(given: Path | None) -> Path:
    from settings import default_data_dir

    return given or default_data_dir()


@app.command()
@command
def run(
    data: DataDir = None,
    out: Annotated[Path, typer.Option(help="Folder for the run.")] = Path("runs/first"),
    recipe: RecipeName = "cpu",
    overrides: Overrides = None,
    resume: Resume = False,
    skip_bad: Annotated[bool, typer.Option(help="Leave damaged files out, and name them.")] = False,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Run a whole recipe: audit, train, predict, blend, submission, report.

    Example: python -m pipeline run --data DIR --recipe cpu --out runs/mine
    """
    from ensembles.run import run as run_recipe
    from models.recipe import load_recipe

    chosen = load_recipe(recipe, overrides or [], seed=seed)
    with progress_bar() as progress:
        result = run_recipe(
            _data_dir(data),
            out,
            chosen,
            resume=resume,
            skip_bad=skip_bad,
            progress=progress,
            say=say,
        )
    if json:
        print_json(result.report)
        return
    _print_scores(result.report)
    typer.echo(f"submission  {result.submission or 'none: the data has no test split'}")
    typer.echo(f"report      {result.report_page}")


def _print_scores(report: dict) -> None:
    """Print one line per collection, then the mean."""
    rows = []
    for name, part in report["collections"].items():
        low, high = part["ci95"] or (None, None)
        rows.append((name, part["metric"], part["value"], low, high, part["n_graphs"]))
    rows.append(("mean", "", report["score"], None, None, sum(row[5] for row in rows)))
    print_table(("collection", "metric", "value", "ci95 low", "ci95 high", "graphs"), rows)


@app.command()
@command
def synthesize(
    out: Annotated[Path, typer.Option(help="Folder for the tree.")],
    plan: Annotated[str, typer.Option(help="tiny (tests) or small (examples).")] = "small",
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Write example data of the official format, with a known cost model behind it.

    Example: python -m pipeline synthesize --out data/raw/synthetic --seed 0
    """
    from data.errors import UsageError
    from data.synthetic import PLANS
    from data.synthetic import synthesize as write_tree

    if plan not in PLANS:
        raise UsageError(f"--plan {plan}: no such plan; known: {', '.join(PLANS)}")
    write_tree(out, seed=seed or 0, plan=PLANS[plan])
    if json:
        print_json({"out": str(out), "plan": plan, "seed": seed or 0})
    else:
        typer.echo(f"data        {out}")


app.command()(collect)


@app.command()
@command
def audit(
    data: DataDir = None,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Check every file; print graphs, nodes, configs, duplicates and anomalies.

    Exits with 1 if a file is damaged. Example: python -m pipeline audit --data DIR
    """
    from data.audit import as_dict, summary
    from data.audit import audit as audit_files
    from data.tree import find_graphs, missing_parts

    files = find_graphs(_data_dir(data))
    with progress_bar() as progress:
        rows = audit_files(files, progress=progress)
    bad = [row for row in rows if row.error]
    if json:
        print_json(
            {
                "files": [as_dict(row) for row in rows],
                "missing_parts": missing_parts(files),
                "n_bad": len(bad),
            }
        )
    else:
        header, table = summary(rows)
        print_table(header, table)
        for part in missing_parts(files):
            typer.echo(f"missing: {part}")
        for row in rows:
            for note in row.notes:
                typer.echo(f"note: {row.file.submission_id}: {note}")
    for row in bad:
        say(f"error: {row.error}")
    if bad:
        raise typer.Exit(1)


@app.command()
@command
def featurize(
    files: Annotated[list[Path], typer.Argument(help="Tuning data or HLO modules (.pb).")],
    out: Annotated[Path, typer.Option(help="Folder for the npz files.")],
    padding: Annotated[
        str, typer.Option(help="Of layouts beyond a tensor's rank: zero or minus-one.")
    ] = "zero",
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Turn tuning protobufs or HLO modules into npz files of the dataset's format.

    Example: python -m pipeline featurize module.hlo.pb --out data/raw/mine
    """
    from features.featurize import featurize_files

    with progress_bar() as progress:
        written = featurize_files(files, out, padding=padding, progress=progress)
    header = ("file", "kind", "nodes", "edges", "configs", "failed")
    rows = [(str(g.path), g.kind, g.n_nodes, g.n_edges, g.n_configs, g.n_failed) for g in written]
    if json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        print_table(header, rows)


@app.command()
@command
def train(
    collection: CollectionName,
    out: Annotated[Path, typer.Option(help="Folder for the trained models.")],
    data: DataDir = None,
    recipe: RecipeName = "cpu",
    model: Annotated[str | None, typer.Option(help="Only this model of the recipe.")] = None,
    overrides: Overrides = None,
    resume: Resume = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Train a recipe's models on one collection's train split, each into a run folder.

    Example: python -m pipeline train --recipe cpu --collection tile:xla --out runs/tile
    """
    from data.tree import collection_named
    from ensembles.stages import train_collection
    from models.recipe import load_recipe

    chosen = load_recipe(recipe, overrides or [], seed=seed)
    with progress_bar() as progress:
        folders = train_collection(
            _data_dir(data),
            collection_named(collection),
            chosen,
            out,
            model=model,
            resume=resume,
            progress=progress,
            say=say,
        )
    for folder in folders:
        typer.echo(f"model       {folder}")


@app.command()
@command
def predict(
    run: Annotated[Path, typer.Option(help="Folder of one trained model, or of a whole run.")],
    out: Annotated[
        Path | None, typer.Option(help="Parquet file. Default: RUN/scores-SPLIT.parquet")
    ] = None,
    data: DataDir = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    collection: Annotated[
        str | None, typer.Option(help="Default: the one the model was trained on.")
    ] = None,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Score every config of a split with trained models.

    Example: python -m pipeline predict --run runs/tile/late_fusion_sage-seed0 --split valid
    """
    from ensembles.stages import predict_split

    with progress_bar() as progress:
        path, n_graphs = predict_split(
            _data_dir(data),
            run,
            split=split,
            out=out,
            collection=collection,
            progress=progress,
        )
    typer.echo(f"scores      {path} ({n_graphs} graphs)")


@app.command()
@command
def blend(
    runs: Annotated[list[Path], typer.Option(help="Run folders after `predict`, or score files.")],
    out: Annotated[Path, typer.Option(help="Parquet file for the blended scores.")],
    more_runs: Annotated[list[Path] | None, typer.Argument(help="More of them.")] = None,
    split: Annotated[str, typer.Option(help="Whose scores to take from folders.")] = "test",
    method: Annotated[str, typer.Option(help="minmax-mean or rank-mean.")] = "minmax-mean",
    submission: Annotated[
        Path | None, typer.Option(help="Also write these rankings as a submission.")
    ] = None,
    collection: Annotated[
        str | None, typer.Option(help="Collection of the scores; needed for a submission.")
    ] = None,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Average the scores of several models of one collection, joined by config content.

    Example: python -m pipeline blend --runs runs/a runs/b --split valid --out blend.parquet
    """
    from ensembles.stages import blend_files

    blend_files(
        [*runs, *(more_runs or [])],
        out,
        split=split,
        method=method,
        submission=submission,
        collection=collection,
    )
    typer.echo(f"scores      {out}")
    if submission:
        typer.echo(f"submission  {submission}")


@app.command()
@command
def score(
    submission: Annotated[Path, typer.Option(help="The rankings to judge.")],
    data: DataDir = None,
    split: Annotated[str, typer.Option(help="Which split the rankings answer.")] = "valid",
    private: Annotated[
        bool, typer.Option("--private", help="Judge by the withheld test runtimes.")
    ] = False,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Judge a submission by measured runtimes, per graph and per collection.

    Example: python -m pipeline score --submission runs/first/submission-valid.csv --data DIR
    """
    from submissions.score import score_submission
    from submissions.truth import labels_of
    from submissions.write import read_submission

    labels = labels_of(_data_dir(data), split=split, private=private)
    report = score_submission(read_submission(submission), labels)
    if json:
        print_json(report)
        return
    for name, part in report["collections"].items():
        for graph, figures in part["per_graph"].items():
            value = figures["tile_score" if name.startswith("tile") else "kendall_tau"]
            typer.echo(f"{name}:{graph}  {part['metric']} {value:.4f}")
    for item in report["left_out"]:
        typer.echo(f"left out: {item['graph']}: {item['reason']}")
    _print_scores(report)


@app.command()
@command
def rank(
    file: Annotated[Path, typer.Argument(help="One graph's npz file.")],
    run: Annotated[Path, typer.Option(help="Folder of `run`, or of one trained model.")],
    top: Annotated[int, typer.Option(min=1, help="How many configs to print.")] = 10,
    collection: Annotated[
        str | None, typer.Option(help="The graph's collection, if its folders do not tell.")
    ] = None,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Print the best configs of one graph, fastest first.

    Example: python -m pipeline rank --run runs/first graph.npz --top 5
    """
    from ensembles.rank import rank_file

    ranked = rank_file(file, run, collection=collection)
    best = ranked.best(top)
    if json:
        print_json({"collection": ranked.collection, "members": ranked.members, "configs": best})
        return
    typer.echo(f"ranked by   {', '.join(ranked.members)}")
    print_table(("rank", "config", "score"), [(b["rank"], b["config"], b["score"]) for b in best])


@app.command()
@command
def tune(
    out: Annotated[Path, typer.Option(help="Folder for trials and the winner's recipe.")],
    data: DataDir = None,
    recipe: RecipeName = "cpu",
    space: Annotated[str, typer.Option(help="Name in configs/tune/, or a .toml file.")] = "cpu",
    storage: Annotated[
        str | None, typer.Option(help="Journal file, or a database URL. Default: OUT/journal.log")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="All trials, earlier calls included.")] = 20,
    timeout_s: Annotated[float | None, typer.Option(help="Stop after this many seconds.")] = None,
    overrides: Overrides = None,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Search hyper-parameters on held-out train graphs; the same command again resumes.

    Example: python -m pipeline tune --recipe cpu --trials 20 --out runs/tune
    """
    from models.recipe import load_recipe
    from models.search_space import load_space
    from models.tuning import tune as search

    chosen = load_recipe(recipe, overrides or [], seed=seed)
    with progress_bar() as progress:
        result = search(
            chosen.model_dump(mode="json"),
            load_space(space),
            _data_dir(data),
            storage=storage or out / "journal.log",
            trials=trials,
            out=out,
            timeout_s=timeout_s,
            say=say,
            progress=progress,
        )
    if json:
        print_json(result.as_dict())
        return
    print_table(("", "value"), [("baseline", result.baseline_value), ("best", result.best_value)])
    typer.echo(f"recipe      {result.best_recipe}")


if __name__ == "__main__":
    app(prog_name="python -m pipeline")
