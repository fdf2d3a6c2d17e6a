"""The commands `rank` and `suggest`: the best configs of a graph, and those to measure next."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import PipelineError, UsageError
from pipeline.cli import options
from pipeline.cli.console import check_output, command, print_json, print_table, say, show

if TYPE_CHECKING:
    from ensembles.ensemble import Ensemble
    from ensembles.ranking.explain import Explanation
    from ensembles.ranking.program import NamedGraph
    from ensembles.ranking.rank import Ranked
    from submissions.run_report import RunReport

CANDIDATES = 200  # of an HLO module, if nobody says how many
KEYS = ("rank", "config", "run", "score")
OTHER_KINDS = {"options": "compiler options", "fusion": "which results are kept apart"}
MAX_PARTS = 15  # that are printed one by one


@command
def rank(
    file: Annotated[
        Path,
        typer.Argument(
            help="Graph file (.npz), tuning data, HLO, StableHLO, jax.export, or FILE#MODULE."
        ),
    ],
    run: Annotated[Path, typer.Option(help="Run folder, or folder of a trained model.")],
    top: Annotated[int, typer.Option(min=1, help="Number of configs to print.")] = 10,
    measure: Annotated[
        int | None, typer.Option(min=1, help="Print this number of configs to measure instead.")
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option(help="Collection of the graph. Default: from the folders of the file."),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(help="Kernel or module to rank. Default: all of the file.")
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option(min=1, help="Number of random layouts to rank. Default for modules: 200."),
    ] = None,
    batch: options.Batch = None,
    why: Annotated[
        bool, typer.Option("--why", help="Print each model's rank, and the measured runtime.")
    ] = False,
    explain: Annotated[
        int | None,
        typer.Option(min=1, help="Print the nodes that make the config at this rank fast or slow."),
    ] = None,
    trust: options.Trust = None,
    json: options.Json = False,
    seed: options.Seed = None,
) -> None:
    """Print the best configs of a graph, sorted by score.

    --measure K prints the K configs to measure. They are different from each other, so one error of
    the models does not affect all of them.

    A repeated config is listed once. Layouts are in the output of --json, as minor-to-major orders.

    Example: fast-or-slow rank --run runs/first graph.npz --collection layout:xla:random
    """
    from ensembles.ranking.program import load_graphs
    from models.run_folder import read_config

    graphs = load_graphs(file, collection=collection, kernel=kernel, batch=batch)
    several = len(graphs) > 1
    read_config(run)
    graphs = [_with_candidates(graph, candidates, seed or 0) for graph in graphs]
    # Takes seconds to import: a bad file is told before.
    from ensembles.ranking.rank import rank as rank_configs

    ranker, report = _warm_ranker(run, graphs[0], trust or ()), _report_of(run)
    rankings = [rank_configs(ranker, graph, top=top) for graph in graphs]
    _note_platform(report, graphs[0])
    parts = [
        kernel_ranks.as_json(why=why, measure=measure)
        | {"faster_than_first": _chance(report, kernel_ranks)}
        for kernel_ranks in rankings
    ]
    explanation = None
    if explain is not None:
        explanation = _explanation_of(ranker, rankings[0], explain)
        parts[0]["explained"] = explanation.as_json()
    if json:
        print_json({"kernels": parts} if several else parts[0])
        return
    if kind := OTHER_KINDS.get(rankings[0].decides):
        say(f"note: configs decide {kind}: unless RUN learned from such files, its order is none")
    for kernel_ranks, part in zip(rankings, parts, strict=True):
        if several:
            show(*[""] * (kernel_ranks is not rankings[0]), f"kernel      {part['name']}")
        _print(kernel_ranks, part)
    if explain is not None and explanation:
        _print_explained(explanation, rankings[0], explain)


def _warm_ranker(run: Path, graph: "NamedGraph", trust: Sequence[str]) -> "Ensemble":
    """Load the models of a run, and let them rank once, so that timings are of ranking alone."""
    from ensembles.ranking.rank import ranker_for, warm_up
    from models.run_folder import models_of
    from models.training.device import log_device

    ranker = ranker_for(run, graph, trust)
    recipe, models = models_of(run, graph.kind)
    if any(recipe.training_of(model) for model in models):
        log_device(recipe)
    warm_up(ranker, graph)
    return ranker


@command
def suggest(
    program: Annotated[
        Path | None,
        typer.Option(help="Graph file (.npz), or any FILE of `rank`, with the configs."),
    ] = None,
    menu: Annotated[
        str | None,
        typer.Option(
            "--options",
            metavar="FILE.toml|builtin",
            help="Compiler options with lists of values, to suggest settings of them instead.",
        ),
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(help="Runtimes so far: CSV, or a graph file with runtimes. Repeatable."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of configs to measure next.")] = 5,
    run: Annotated[
        Path | None, typer.Option(help="Run folder to start from. Default: an untrained rule.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New CSV file of the configs, to fill in runtime_ns.")
    ] = None,
    collection: Annotated[str | None, typer.Option(help="Collection of the graph.")] = None,
    candidates: Annotated[
        int | None, typer.Option(min=1, help="Number of random layouts of a module, as in `rank`.")
    ] = None,
    batch: options.Batch = None,
    trust: options.Trust = None,
    json: options.Json = False,
    seed: options.Seed = None,
) -> None:
    """Choose the configs to measure next.

    Measure them, pass the runtimes as --measured, and repeat. Without --measured, the ranker and
    the compiler's own choice decide. With --options, settings of compiler options are chosen.

    Example: fast-or-slow suggest --program graph.npz --measured runs.csv --count 5 --out next.csv
    """
    from common.files import write_text
    from ensembles.ranking.program import load_graph
    from models.run_folder import read_config

    if (program is None) == (menu is None):
        raise UsageError("suggest: expected either --program FILE or --options FILE.toml")
    check_output("--out", out, ".csv")
    if out and out.exists():
        raise UsageError(f"--out {out}: exists, perhaps with runtimes; expected a new file")
    if menu and (run or collection or candidates or batch or trust):
        idle = "--run, --collection, --candidates, --batch and --trust have no effect"
        raise UsageError(f"--options {menu}: {idle}; leave them out")
    if program is None:
        _suggest_options(menu or "", measured or (), count, out, seed or 0, as_json=json)
        return
    if run:
        read_config(run)
    graph = load_graph(program, collection=collection, batch=batch)
    graph = _with_candidates(graph, candidates, seed or 0)
    from ensembles.ranking import rank as ranks
    from ensembles.ranking import suggest as module

    runtimes = _runtimes_of(measured or (), graph)
    ranking = ranks.rank(ranks.ranker_for(run, graph, trust or ()), graph)
    _note_platform(_report_of(run), graph)
    rows = module.suggest(ranking.scores, graph.graph, runtimes, count)
    entries = [{"rank": ranking.place(row), "config": row} | ranking.spelled(row) for row in rows]
    means = {config: sum(values) / len(values) for config, values in runtimes.items()}
    best = min(means, key=means.__getitem__, default=None)
    if out and rows:
        write_text(out, module.request_text(rows, graph.graph))
    if json:
        print_json({"name": graph.name, "best": best, "configs": entries})
        return
    if best is not None:
        show(f"best        config {best}, {means[best]:.0f} ns")
    _print_configs(entries)


def _runtimes_of(paths: Sequence[Path], graph: "NamedGraph") -> dict[int, list[float]]:
    from ensembles.ranking.suggest import read_runtimes

    runtimes = dict[int, list[float]]()
    for config, runtime_ns in chain(*(read_runtimes(path, graph) for path in paths)):
        runtimes.setdefault(config, []).append(runtime_ns)
    return runtimes


def _suggest_options(
    source: str, measured: Sequence[Path], count: int, out: Path | None, seed: int, *, as_json: bool
) -> None:
    from common.files import write_text
    from ensembles.ranking import options as module

    menu, runtimes = module.read_menu(source), dict[tuple[int, ...], list[float]]()
    for setting, runtime_ns in chain(*(module.read_measured(path, menu) for path in measured)):
        runtimes.setdefault(setting, []).append(runtime_ns)
    settings = module.suggest_settings(menu, runtimes, count, seed=seed)
    means = {s: sum(ns) / len(ns) for s, ns in runtimes.items() if inf not in ns}
    best = min(means, key=means.__getitem__, default=())

    def entry(setting: tuple[int, ...]) -> dict[str, Any]:
        flags, values = module.option_flags(menu, setting), module.option_values(menu, setting)
        return {"xla_flags": flags, "values": values}

    text = module.request_text(menu, settings)
    if out and settings:
        write_text(out, text)
    if as_json:
        fastest = {"runtime_ns": means[best], **entry(best)} if best else None
        print_json({"best": fastest, "next": [entry(setting) for setting in settings]})
        return
    if best:
        name = module.option_flags(menu, best) or "as the compiler has it"
        show(f"best        {means[best]:.0f} ns, {name}")
    lines = [f'XLA_FLAGS="{module.option_flags(menu, setting)}"' for setting in settings]
    show(*lines or ["all settings are measured"])
    if settings and not out:
        show("", *text.splitlines())


def _explanation_of(ranker: "Ensemble", ranking: "Ranked", rank: int) -> "Explanation":
    from ensembles.ranking.explain import explain

    entries = ranking.best(rank)
    if len(entries) < rank:
        raise UsageError(f"--explain {rank}: expected a rank, 1..{len(entries)}")
    explanation = explain(ranker, ranking.graph, entries[-1]["config"])
    if not explanation.parts:
        baseline = explanation.baseline or f"config {explanation.against}"
        fact = f"config {explanation.config} is {baseline} itself"
        raise UsageError(f"--explain {rank}: {fact}; expected another rank")
    return explanation


def _with_candidates(graph: "NamedGraph", candidates: int | None, seed: int) -> "NamedGraph":
    from data.hlo.files import HOW_TO_DUMP
    from ensembles.ranking.configs import with_configs

    if candidates is None and graph.has_configs:
        return graph
    layouts = graph.candidates(candidates or CANDIDATES, seed=seed)
    note = "config 0 is the compiler's choice; none was measured"
    say(f"{graph.name}: {len(layouts)} random legal layouts; {note}")
    if "fusion" in map(graph.opcode, range(graph.graph.n_nodes)):
        say(f"note: {graph.name} is optimized; layouts are chosen before that; {HOW_TO_DUMP}")
    return with_configs(graph, layouts)


def _print(ranking: "Ranked", part: dict[str, Any]) -> None:
    show(f"ranked by   {', '.join(ranking.members)}")
    best = part["configs"]
    _print_configs(best)
    n_configs = len(ranking.scores)
    timing = f"{ranking.ms_per_config:.3f} ms per config, {n_configs} in {ranking.seconds:.2f} s"
    show(f"inference   {timing}")
    if part["measured"]:
        values = ", ".join(f"{name} {value:.3f}" for name, value in part["measured"].items())
        if (n_distinct := part["n_distinct"]) < n_configs:
            note = f"`run` and `score` judge all {n_configs} rows"
            values += f"; of {n_distinct} distinct configs ({note})"
        show(f"measured    {values}")
    if default := part["default"]:
        place = f"config {default['config']}, {_place_text(default['place'], part)}"
        slow = f", slowdown {default['slowdown']:.3f}" if "slowdown" in default else ""
        show(f"default     {place}{slow}: nearest to the compiler's own")
    if (chance := part["faster_than_first"]) and not part["measured"]:
        share = "{probability:.2f} [{low:.2f}, {high:.2f}], as in {n_faster} of {n_graphs}"
        odds = share.format(**chance) + " valid graphs"
        show(f"worth it?   chance that --measure 5 finds one over 1 % faster: {odds}")
    for entry in best:
        if "why" in entry:
            _print_why(entry["why"], part)


def _note_platform(report: "RunReport | None", graph: "NamedGraph") -> None:
    """Print a note if the ranker learned the runtimes of another platform than the file's."""
    from data.manifest import platforms_of
    from data.tree import file_from_path

    platforms = report.measured_on if report else []
    with suppress(PipelineError):  # most files are not in a data tree
        if platforms_of(file_from_path(graph.path).data_dir) == platforms:
            return
    if platforms:
        names = " and ".join(platforms)
        say(f"note: trained on {names} runtimes; this order may be wrong for other hardware")


def _report_of(run: Path | None) -> "RunReport | None":
    from models.run_folder import REPORT
    from submissions.run_report import read_report

    return read_report(run) if run and (run / REPORT).exists() else None


def _chance(report: "RunReport | None", ranking: "Ranked") -> dict[str, Any] | None:
    place = ranking.graph.collection
    name = place.name if place else ranking.collection
    parts = report.collections if report else {}
    return parts[name].chance_of_gain() if name in parts else None


def _print_configs(entries: list[dict[str, Any]]) -> None:
    from ensembles.ranking.layouts import TILE_BOUNDS

    if not entries:
        show("all configs are measured")
        return
    fields, rows = (*TILE_BOUNDS, "iteration_bounds"), []
    for entry in entries:
        bounds = [entry.get("tile", {}).get(field) for field in fields]
        sizes = [" x ".join(map(str, sides)) if sides else None for sides in bounds]
        options = " ".join(f"{name}={value}" for name, value in entry.get("options", {}).items())
        texts = options or None, ", ".join(entry.get("kept_apart", ())) or None
        rows.append((*(entry.get(key) for key in KEYS), *sizes, *texts))
    header = (*KEYS, *fields, "options", "kept apart")
    print_table(header, rows, if_known=header)


def _place_text(place: float, part: dict[str, Any]) -> str:
    distinct = " distinct" if part["n_distinct"] < part["n_configs"] else ""
    return f"place {place:g} of {part['n_distinct']}{distinct}"


def _print_why(why: dict[str, Any], part: dict[str, Any]) -> None:
    of = f", the mean of {why['n_equal']} equal rows" if why["n_equal"] > 1 else ""
    ns = why["runtime_ns"]
    runtime = "not measured" if ns is None else f"measured {ns:,} ns{of}"
    decision = "" if why["decided"] is None else f"; decides {_nodes_text(why['decided'])}"
    show("", f"config {why['config']}: {_place_text(why['place'], part)}, {runtime}{decision}")
    print_table(
        ("member", "place"), [(name, f"{place:g}") for name, place in why["places"].items()]
    )


def _nodes_text(n_nodes: int) -> str:
    return f"{n_nodes} node{'s' * (n_nodes != 1)}"


def _print_explained(explanation: "Explanation", ranking: "Ranked", rank: int) -> None:
    show("", explanation.heading)
    own_ns, other_ns = map(ranking.runtime_ns, (explanation.config, explanation.against))
    runtimes = "" if own_ns is None else f"; measured {own_ns:,} ns against {other_ns:,} ns"
    show(f"rank        {rank}{runtimes}")
    rows: list[tuple[object, ...]] = []
    for part in explanation.parts[:MAX_PARTS]:
        node = part.after
        facts = node.node, node.name, node.opcode, part.shape, part.change
        rows.append((*facts, *explanation.said(part.score)))
    if remainder := explanation.parts[MAX_PARTS:]:
        scores = explanation.said(sum(part.score for part in remainder))
        rows.append((None, None, f"{len(remainder)} more", "", "", *scores))
    header = ("node", "name", "opcode", "output", "change", "part", "share")
    print_table(header, rows, if_known=("name", "share"))
    show(f"explained   {explanation.n_variants} variants in {explanation.seconds:.2f} s")
