"""Rank the layouts of a JAX function with trained models, then measure whether the picks are good.

    make run             # trains models on the embedded sample: the run folder runs/first
    make setup-collect   # installs JAX
    .venv/bin/python -m examples.rank_jax_function --run runs/first --program my_model:step

`my_model.py` is a file in this folder with a function `step` and `step_arguments`, which returns
its example arguments (docs/collect.md has one); a name of `pipeline collect --list` does as well.
With `--kind tile` it ranks tile sizes of a kernel instead.

Random legal configs are ranked. The five predicted fastest, the compiler's own choice and thirty
more, drawn at random, are compiled and timed on this machine, in interleaved rounds.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.console import command, print_table

if TYPE_CHECKING:
    from ensembles.ranking.measure import Trial


@command
def main(
    run: Annotated[str, typer.Option(help="Run folder of trained models; `make run` makes one.")],
    program: Annotated[str, typer.Option(help="module:function, or a name in the catalogue.")],
    kind: Annotated[str, typer.Option(help="What is varied: layout or tile.")] = "layout",
    candidates: Annotated[int, typer.Option(min=2, help="How many random configs to rank.")] = 300,
    picks: Annotated[int, typer.Option(min=1, help="How many of the best to measure.")] = 5,
    measured: Annotated[int, typer.Option(min=2, help="How many others to measure.")] = 30,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is measured.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn.")] = 0,
) -> None:
    """Rank the configs of a JAX program and measure the best on this machine.

    Example: python -m examples.rank_jax_function --run runs/first --program my_model:step
    """
    from data.collect.job import Effort, make_job
    from ensembles import load_ranker
    from ensembles.ranking.measure import try_ranking

    effort = Effort(candidates, rounds, timeout_s=60.0, seed=seed)
    job = make_job(program, kind=kind, effort=effort)
    ranker = load_ranker(run, collection=job.collection.name)
    trial = try_ranking(job, ranker, n_candidates=candidates, n_picks=picks, n_others=measured)
    _print(trial)


def _print(trial: "Trial") -> None:
    ranked = trial.ranked
    best = ranked.best(distinct=True)
    print_table(
        ("rank", "config", "score", "measured ms"),
        [(b["rank"], b["config"], b["score"], trial.runtime_ns[b["config"]] / 1e6) for b in best],
    )
    pick, known, default = trial.best_pick_ns, trial.best_known_ns, trial.default_ns
    n_ranked, n_others = len(ranked.scores), len(trial.others)
    typer.echo(f"ranked       {n_ranked} configs, {ranked.ms_per_config:.2f} ms each")
    typer.echo(f"best pick    {pick / 1e6:.4f} ms")
    typer.echo(f"best known   {known / 1e6:.4f} ms; best pick / best known {pick / known:.3f}")
    typer.echo(f"compiler     {default / 1e6:.4f} ms; best pick / compiler {pick / default:.3f}")
    typer.echo(f"at random    {trial.median_other_ns / 1e6:.4f} ms, the median of {n_others}")
    typer.echo(f"Kendall tau  {trial.tau:.2f} on those {n_others}")


if __name__ == "__main__":
    typer.run(main)
