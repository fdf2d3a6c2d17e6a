"""The `collect` command: one program, or a whole plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import UsageError
from pipeline.cli.console import (
    EXIT_FAULT,
    Json,
    MaxMinutes,
    Seed,
    command,
    print_json,
    print_rows,
    print_table,
    say,
)

if TYPE_CHECKING:
    from data.collect.collect import Outcome
    from data.collect.job import Job

PLANNED = ("kind", "configs", "search", "split", "rounds", "timeout_s")  # a plan has its own
HEADER = ("graph", "configs", "failed", "spread", "repeat tau", "again tau", "seconds")


@command
def collect(
    call: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Data folder to write to; the same command goes on.")
    ] = Path("data/raw/collected"),
    program: Annotated[
        str | None, typer.Option(help="Name in the catalogue, or package.module:function.")
    ] = None,
    kind: Annotated[
        str, typer.Option(help="What is varied: layout, tile, options or fusion.")
    ] = "layout",
    plan: Annotated[
        str | None, typer.Option(help="Measure a plan instead, with settings of its own: sample.")
    ] = None,
    configs: Annotated[int, typer.Option(min=2, help="Configs to try per graph.")] = 100,
    search: Annotated[
        str, typer.Option(help="random, or default (genetic); of tiles all.")
    ] = "random",
    split: Annotated[str, typer.Option(help="train, valid or test (runtimes withheld).")] = "train",
    device: Annotated[str | None, typer.Option(help="cpu, gpu or tpu. Default: JAX's own.")] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Interleaved rounds; more are added.")] = 2,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Of a config and visit.")] = 60.0,
    remeasure: Annotated[
        bool, typer.Option(help="Measure up to 30 configs twice; note how they agree.")
    ] = False,
    keep_noisy: Annotated[
        bool, typer.Option(help="Write graphs too whose repeats agree to a tau below .8.")
    ] = False,
    list_programs: Annotated[
        bool, typer.Option("--list", help="Print the programs of this --kind, and stop.")
    ] = False,
    max_minutes: MaxMinutes = None,
    json: Json = False,
    seed: Seed = None,
) -> None:
    """Measure configs of a program on this machine.

    What it writes are files of the official format.

    Example: python -m pipeline collect --kind tile --program softmax_h8_q128_s128 --out DIR
    """
    from data.collect.collect import collect_jobs
    from data.collect.job import Effort, known_programs, make_job, sample_jobs

    if list_programs:
        print_rows(("program", "family"), known_programs(kind), as_json=json)
        return
    if (program is None) == (plan is None):
        raise UsageError("collect: expected --program or --plan, and not both")
    if program is not None:
        effort = Effort(configs, rounds, timeout_s, seed or 0)
        jobs = [
            make_job(program, kind=kind, search=search, split=split, device=device, effort=effort)
        ]
    else:
        if plan != "sample":
            raise UsageError(f"--plan {plan}: no such plan; known: sample")
        for name in PLANNED:
            source = call.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise UsageError(f"--{name.replace('_', '-')}: a --plan has settings of its own")
        jobs = sample_jobs(seed=seed or 0, device=device)
    outcomes = collect_jobs(jobs, out, remeasure=remeasure, keep_noisy=keep_noisy)
    if json:
        print_json({outcome.job.submission_id: outcome.entry for outcome in outcomes})
    else:
        _tell(outcomes, jobs, out, is_plan=plan is not None)
    if program and not all(outcome.path for outcome in outcomes):
        raise typer.Exit(EXIT_FAULT)  # the one graph that was asked for was left out


def _tell(outcomes: "list[Outcome]", jobs: "list[Job]", out: Path, *, is_plan: bool) -> None:
    print_table(HEADER, [outcome.row() for outcome in outcomes if outcome.path])
    for outcome in outcomes:
        if outcome.was_there and not is_plan:
            name = outcome.job.submission_id
            say(f"{name}: was there; more --rounds add to it, another --out measures it anew")
        if outcome.path is None:
            typer.echo(outcome.line())
    if len(outcomes) < len(jobs):
        n_left = len(jobs) - len(outcomes)
        typer.echo(f"not done: {n_left} of {len(jobs)} graphs; the same command goes on")
    typer.echo(f"data        {out}")
