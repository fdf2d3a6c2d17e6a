"""The command line: `python -m pipeline COMMAND …`. Each package brings its own commands."""

import typer

from data.collect.commands import collect
from data.commands import audit, synthesize
from data.fetch.commands import fetch
from data.packing.commands import prepare
from ensembles.commands import blend, predict, run, train
from ensembles.plan_command import plan
from ensembles.rank_command import rank
from ensembles.run_commands import compare, report, runs
from features.commands import featurize, statistics
from kernels.commands import app as kernel_app
from kernels.dataset_command import app as dataset_app
from models.commands import app as tune_app
from submissions.commands import app as submission_app
from submissions.score_command import score

app = typer.Typer(
    help="Rank XLA compiler configs from fastest to slowest: TpuGraphs, end to end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
for function in (
    run,
    plan,
    synthesize,
    fetch,
    audit,
    prepare,
    featurize,
    statistics,
    collect,
    train,
    predict,
    blend,
    score,
    rank,
    report,
    runs,
    compare,
):
    app.command()(function)
app.add_typer(submission_app, name="submission")
app.add_typer(tune_app, name="tune")
app.add_typer(kernel_app, name="kernel")
app.add_typer(dataset_app, name="dataset")


if __name__ == "__main__":
    app(prog_name="python -m pipeline")
