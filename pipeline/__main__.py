"""The command line: `fast-or-slow COMMAND …`, or `python -m pipeline COMMAND …`.

The commands are in pipeline/cli/.
"""

import atexit
import os
import signal
import sys
from io import TextIOWrapper
from pathlib import Path

# The working folder may have other modules named `models` or `data`, so the project comes first.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.signals import end_at_once, handle, handled_by

# The imports take half a second.
with handled_by(end_at_once):
    # A file that is opened later must not get the number of a closed stream (`2>&-`).
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, stream) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, stream, os.fdopen(number, "w" if number else "r", closefd=False))
    try:
        import typer
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}; run `make setup`, then .venv/bin/python -m pipeline")

    from pipeline.cli.blend import blend
    from pipeline.cli.data import audit, featurize, fetch, prepare, statistics, synthesize
    from pipeline.cli.kernel import app as kernel_app
    from pipeline.cli.kernel import dataset_app
    from pipeline.cli.plan import plan
    from pipeline.cli.programs import collect, optimize
    from pipeline.cli.rank import rank, suggest
    from pipeline.cli.reports import compare, report, runs
    from pipeline.cli.run import predict, run, train
    from pipeline.cli.submission import app as submission_app
    from pipeline.cli.submission import score
    from pipeline.cli.tune import tune

# A file name or a message of a server may have characters that the terminal's encoding lacks.
if isinstance(sys.stdout, TextIOWrapper):
    sys.stdout.reconfigure(errors="backslashreplace")
# OpenMP's threads spin while they wait, by default. On shared cores this takes time from other
# work. The variable is read when a command imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The GPU memory of a training step changes with its graph. Expandable segments leave no gaps. The
# variable is read when torch starts CUDA.
if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

app = typer.Typer(
    help="Rank XLA compiler configs from fastest to slowest: TpuGraphs, end to end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
for function in (
    *(run, plan, synthesize, fetch, audit, prepare, featurize, statistics, collect),
    *(train, predict, blend, tune, score, rank, suggest, optimize, report, runs, compare),
):
    app.command()(function)
app.add_typer(submission_app, name="submission")
app.add_typer(kernel_app, name="kernel")
app.add_typer(dataset_app, name="dataset")


def main(name: str = "fast-or-slow") -> None:
    """Run a command of the command line, under this name in messages and help."""
    # The handlers stay until the process ends.
    handle(end_at_once)
    # Python resets its own handlers at its end, and a signal would then end a finished command.
    atexit.register(handle, signal.SIG_IGN)
    app(prog_name=name)


if __name__ == "__main__":
    main("python -m pipeline")
