"""The commands that measure programs on this machine: collect, optimize."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli import options
from pipeline.cli.console import (
    command,
    print_json,
    print_rows,
    print_table,
    say,
    show,
    tell_errors,
)

if TYPE_CHECKING:
    from autotune.collect import Outcome

HEADER = (
    *("graph", "configs", "distinct", "failed"),
    *("spread", "repeat tau", "again tau", "seconds"),
)


@command
def collect(
    out: Annotated[Path, typer.Option(help="Data folder. The same command resumes.")] = Path(
        "data/raw/collected"
    ),
    program: Annotated[
        str | None,
        typer.Option(help="Name in --list, package.module:function, or FILE[#MODULE]."),
    ] = None,
    kind: Annotated[
        str, typer.Option(help="Decisions to vary: layout, options or fusion.")
    ] = "layout",
    plan: Annotated[
        Literal["sample", "large"] | None,
        typer.Option(help="Measure the programs of a plan instead of one."),
    ] = None,
    configs: Annotated[int, typer.Option(min=2, help="Number of configs per graph.")] = 100,
    search: Annotated[
        str,
        typer.Option(help="Search of configs: random, or default (genetic)."),
    ] = "random",
    split: Annotated[
        str, typer.Option(help="Split for the graph. In test, runtimes are withheld.")
    ] = "train",
    static: options.Static = None,
    arguments: options.Arguments = None,
    batch: options.Batch = None,
    device: options.Device = None,
    rounds: Annotated[
        int, typer.Option(min=2, help="Number of measurement rounds. Later calls can add rounds.")
    ] = 2,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Time limit of a config in one round, in seconds.")
    ] = 60.0,
    remeasure: Annotated[
        bool, typer.Option(help="Measure up to 30 configs again, and store the agreement.")
    ] = False,
    list_programs: Annotated[
        bool, typer.Option("--list", help="Print the programs of this --kind.")
    ] = False,
    max_minutes: options.MaxMinutes = None,
    json: options.Json = False,
    seed: options.Seed = None,
) -> None:
    """Measure configs of a program on this machine.

    It writes files in the format of the dataset.

    Example: fast-or-slow collect --kind layout --program mlp_b16 --out data/raw/mine
    """
    from autotune.collect import collect_graphs
    from autotune.plan import KINDS, CollectRequest, check_choice, plan_requests
    from autotune.programs.catalogue import ProgramInputs, rows

    if list_programs:
        check_choice("--kind", kind, KINDS)
        programs = [(row["program"], row["family"]) for row in rows()]
        print_rows(("program", "family"), programs, as_json=json)
        return
    if (program is None) == (plan is None):
        raise UsageError("collect: expected either --program or --plan")
    if plan:
        requests = plan_requests(plan, seed=seed or 0, device=device)
    elif program:
        inputs = ProgramInputs(tuple(static or ()), arguments, seed or 0, batch)
        effort = (configs, rounds, timeout_s, seed or 0)
        requests = [CollectRequest(program, kind, search, split, device, *effort, inputs)]
    outcomes = collect_graphs(requests, out, remeasure=remeasure)
    if json:
        print_json({outcome.request.submission_id: outcome.entry for outcome in outcomes})
    else:
        _print_outcomes(outcomes, is_plan=plan is not None)
        if n_left := len(requests) - len(outcomes):
            show(f"not done: {n_left} of {len(requests)} graphs; the same command resumes")
        show(f"data        {out}")
    if program:
        tell_errors([outcome.line() for outcome in outcomes if outcome.path is None])


def _print_outcomes(outcomes: "Sequence[Outcome]", *, is_plan: bool) -> None:
    if rows := [outcome.row() for outcome in outcomes if outcome.path]:
        print_table(HEADER, rows)
    for outcome in outcomes:
        if outcome.was_there and not is_plan:
            name = outcome.request.submission_id
            say(f"{name}: exists; more --rounds add to it, another --out measures it again")
        if outcome.path is None and is_plan:
            show(outcome.line())


@command
def optimize(
    program: Annotated[
        str,
        typer.Option(
            help="JAX function as package.module:function, HLO or StableHLO as FILE[#MODULE], or "
            "a program of `collect --list`."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output folder. The same command resumes.")],
    minutes: Annotated[float, typer.Option(min=0.1, help="Time limit in minutes.")] = 10.0,
    space: Annotated[
        str, typer.Option(help="Decisions to search: options,layouts,fusion.")
    ] = "options",
    run: Annotated[
        Path | None, typer.Option(help="Run folder whose models propose layouts.")
    ] = None,
    search: Annotated[
        str, typer.Option(help="Search: portfolio, random, genetic or ranker (with --run).")
    ] = "portfolio",
    candidates: Annotated[
        int, typer.Option(min=2, help="Largest number of candidates to compile.")
    ] = 150,
    timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Time limit of a candidate, in seconds.")
    ] = 60.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not start from the stored result of this program.")
    ] = False,
    static: options.Static = None,
    arguments: options.Arguments = None,
    batch: options.Batch = None,
    device: options.Device = None,
    json: options.Json = False,
    seed: options.Seed = None,
) -> None:
    """Find a faster config of a program, and verify it.

    All measurements are on this machine. OUT/best.json has the result. If a config is faster than
    the default, OUT/apply.py is the faster function.

    Example: fast-or-slow optimize --program my_model:step --out runs/optimized
    """
    from autotune.optimize import write
    from autotune.optimize.candidate import setting_text
    from autotune.optimize.optimize import optimize as choose
    from autotune.optimize.session import OptimizeRequest, TooFewMinutes
    from autotune.programs.catalogue import ProgramInputs
    from common.settings import USER_CACHE

    spaces = tuple(dict.fromkeys(space.split(",")))
    request = OptimizeRequest(
        program,
        spaces,
        candidates,
        timeout_s=timeout_s,
        seed=seed or 0,
        device=device,
        run=str(run.resolve()) if run else None,
        search=search,
        inputs=ProgramInputs(tuple(static or ()), arguments, seed or 0, batch),
    )
    try:
        cache = USER_CACHE / "optimize"
        result = choose(request, out, minutes=minutes, cache=cache, is_fresh=fresh)
    except TooFewMinutes as error:
        words = re.sub(r" --minutes[ =]\S+", "", shlex.join(sys.argv[1:]))
        line = f"{error}: fast-or-slow {words} --minutes {error.minutes}"
        raise PipelineError(line) from error
    content = write.write_result(result, out)
    if json:
        print_json(content)
        return
    finalists = ((c, c.verified.ratio) for c in result.finalists if c.verified)
    rows = [(c.source, write.ratio_text(r), setting_text(c.description)) for c, r in finalists]
    if rows:
        print_table(("from", "time / default's", "decisions"), rows)
    for line in write.summary_lines(result, out):
        show(line)
