"""Choose the configs of a program to measure next, from a ranker and the runtimes so far.

The owner of the hardware measures, and this module chooses, like Optuna's ask-and-tell. The first
configs are the compiler's own choice, if the file has a config that leaves all layouts open, and
those of `top_k_to_measure`. Then runtimes correct a Gaussian process (ensembles.score_errors): a
score is a guess of the logarithm of a runtime. The size and the correlation of the errors and the
noise of a measurement have their most likely values, so a ranker of no use is soon ignored.

c configs, u distinct configs, m measured ones, b candidates.
"""

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, ConfigDict, NonNegativeInt, PositiveFloat
from scipy.linalg import solve_triangular
from scipy.stats import norm, rankdata

from common.errors import PipelineError, UsageError
from common.files import missing_path, open_regular, read_bytes
from common.machine import thread_limits
from common.progress import log
from common.settings import FrozenConfig
from data.graphs.graph import Graph, LayoutGraph, config_hashes, distinct_configs
from ensembles.picks import top_k_to_measure
from ensembles.ranking.configs import default_row
from ensembles.ranking.program import NamedGraph, load_graph
from ensembles.score_errors import (
    JITTER,
    MAX_CANDIDATES,
    Floats,
    Ints,
    correlations,
    draw_errors,
    lowest_minimum,
)

# Standard deviation of the error of a score, in standard deviations of the scores.
ERRORS = (0.5, 1.0, 2.0, 4.0, 8.0)
# Length scales of the correlation, relative to those of `ensembles.score_errors`.
SCALES = (1 / 3, 1.0, 3.0)
# Variance of a measurement's noise, relative to that of the errors.
NOISES = (0.01, 0.1)
# Nothing is known about the mean of all runtimes. In variances of the scores.
MEAN_VARIANCE = 100.0
# Standard deviation of log runtimes in a program, as long as no two runtimes differ.
TYPICAL_SPREAD = 0.2
# Of more measured configs or candidates, a part is used. This bounds time and memory.
MAX_CONFIGS = 1024
# Endings of tables. Only CSV files are read, and no packed ones.
TABLES = {".csv", ".tsv", ".ods", ".xls", ".xlsx"}
# Bytes at the start of a file that tell a text from a graph file.
TEXT_START = 4096

# Runtimes in ns by config (its row in the file). inf is a config that failed.
Runtimes = Mapping[int, Sequence[float]]


class Measurement(FrozenConfig):
    """One line of a CSV file. A runtime of inf is a config that failed."""

    # The values of a CSV file are texts.
    model_config = ConfigDict(strict=False)

    config: NonNegativeInt
    config_hash: str = ""
    runtime_ns: Annotated[PositiveFloat | None, BeforeValidator(lambda text: text or None)]


def suggest(scores: NDArray[np.float32], graph: Graph, runtimes: Runtimes, k: int) -> list[int]:
    """Choose at most k distinct configs to measure next, in the order of choice.

    Args:
        scores: Finite score of each config by a ranker, (c,), lower = faster.
        graph: Graph of the configs. Its own runtimes are not read.
        runtimes: Runtimes so far. Repeated measurements of equal configs are merged.
    """
    first, group = distinct_configs(graph)
    logs: dict[int, list[float]] = {}
    for row, values in runtimes.items():
        logs.setdefault(int(group[row]), []).extend(np.log(values).tolist())
    open_configs = np.setdiff1d(np.arange(len(first)), [*logs])
    mean = {config: float(np.mean(values)) for config, values in logs.items()}
    ran = sorted((config for config in mean if np.isfinite(mean[config])), key=mean.__getitem__)
    if not (len(open_configs) and ran):
        top_rows = top_k_to_measure(scores, graph, k + len(logs) + 1)
        order = dict.fromkeys(group[[*_compilers_choice(graph), *top_rows]].tolist())
        return first[[config for config in order if config not in logs][:k]].tolist()
    prior = norm.ppf((rankdata(scores[first]) - 0.5) / len(first))
    measured_configs = _sample_configs(np.array(ran))
    candidates = _sample_configs(open_configs[np.argsort(prior[open_configs], kind="stable")])
    positions = np.concatenate([measured_configs, candidates])
    log_ns = np.array([mean[config] - mean[ran[0]] for config in measured_configs.tolist()])
    repeats = np.array([len(logs[config]) for config in measured_configs.tolist()])
    # The matrices are small, so several threads would only wait for each other.
    with thread_limits(1, "blas"):
        likenesses = correlations(graph, first[positions], SCALES)
        promising, draws = draw_runtimes(likenesses, prior[positions], log_ns, repeats)
        fastest = np.zeros(draws.shape[1], np.float32)
        picks = lowest_minimum(draws, fastest, [], min(k, len(draws)))
    return first[candidates[promising[picks]]].tolist()


def _compilers_choice(graph: Graph) -> list[int]:
    # The config nearest to the compiler's choice is often no good one, so it must be the choice.
    if not isinstance(graph, LayoutGraph):
        return []
    row = default_row(graph)
    is_open = (graph.configs.rows(np.array([row])) < 0).all()
    return [row] if is_open else []


def draw_runtimes(
    likenesses: Sequence[Floats], prior: Floats, log_ns: Floats, repeats: Ints
) -> tuple[Ints, NDArray[np.float32]]:
    """Draw log runtimes of the most promising candidates, given the measurements.

    A log runtime is mean + (score + error of the score + noise) / scale.

    Args:
        likenesses: Correlations of the errors to choose from, each (m + b, m + b), the measured
            configs first.
        prior: Scores, (m + b,), of mean 0 and variance 1.
        log_ns: Log runtimes, (m,).
        repeats: Number of measurements of each config, (m,).

    Returns:
        Positions of at most 256 candidates, (p,), and draws of their log runtimes, (p, draws).
    """
    m, highest, mean, exact = len(log_ns), -np.inf, prior, likenesses[0]
    values = np.stack([prior[:m], log_ns - log_ns.mean()], axis=1)
    for correlation, error, noise in product(likenesses, ERRORS, NOISES):
        covariance = error**2 * correlation + MEAN_VARIANCE
        factor = np.linalg.cholesky(covariance[:m, :m] + error**2 * np.diag(noise / repeats))
        whitened_prior, whitened_logs = solve_triangular(factor, values, lower=True).T
        a, b = float(whitened_logs @ whitened_logs), float(whitened_logs @ whitened_prior)
        # The root of the derivative of m·log(scale) - |scale·observed - expected|²/2.
        scale = (b + np.sqrt(b * b + 4 * a * m)) / (2 * a) if a else 1 / TYPICAL_SPREAD
        residual = scale * whitened_logs - whitened_prior
        half_log_det = np.log(np.diagonal(factor)).sum()
        evidence = m * np.log(scale) - half_log_det - residual @ residual / 2
        if evidence > highest:
            highest = evidence
            cross_factor = solve_triangular(factor, covariance[:m, m:], lower=True)  # (m, b)
            mean = (prior[m:] + residual @ cross_factor) / scale + log_ns.mean()
            # The determinant of the exact covariance may be 0.
            jitter = JITTER * error**2 * np.eye(len(mean))
            exact = (covariance[m:, m:] - cross_factor.T @ cross_factor + jitter) / scale**2
    lowest = mean - np.sqrt(np.diagonal(exact))
    promising = np.argsort(lowest, kind="stable")[:MAX_CANDIDATES]
    errors = draw_errors(exact[np.ix_(promising, promising)])
    return promising, mean[promising, None].astype(np.float32) + errors


def _sample_configs(configs: Ints) -> Ints:
    """Return at most MAX_CONFIGS of sorted configs: the first ones, and a sample of the others."""
    half = MAX_CONFIGS // 2
    sample = np.linspace(half, len(configs) - 1, half).astype(np.int64)
    return configs[np.r_[:half, sample]] if len(configs) > MAX_CONFIGS else configs


def read_runtimes(path: Path, program: NamedGraph) -> list[tuple[int, float]]:
    """Read measured runtimes of a graph's configs.

    Args:
        path: A CSV file of `request_text`, whose column `config_hash` may be missing, or any file
            of `load_graph` with configs and runtimes of the same program.

    Returns:
        Config and runtime in ns of each measurement. inf is a config that failed.
    """
    hashes = config_hashes(program.graph).tolist()
    if {suffix.lower() for suffix in path.suffixes} & TABLES and path.suffix.lower() != ".csv":
        raise PipelineError(f"{path}: expected a .csv file; save or unpack the table as one")
    if not path.exists():
        raise missing_path(path, "a CSV file or a graph file with runtimes")
    if path.suffix.lower() == ".csv" or _is_text(path):
        measurements = _read_runtimes(path, hashes)
    else:
        graph = load_graph(path).graph
        row_of = {content: row for row, content in enumerate(hashes)}
        rows = [row_of.get(content, -1) for content in config_hashes(graph).tolist()]
        arrays = ("node_opcode", "edge_index", "node_feat", "node_config_ids")
        is_same = all(
            np.array_equal(getattr(graph, name, 0), getattr(program.graph, name, 0))
            for name in arrays
        )
        if -1 in rows or not is_same:
            raise PipelineError(f"{path}: expected the program and configs of {program.path}")
        runtimes = graph.runtime_ns.astype(float).tolist() if graph.is_labelled else ()
        measurements = [*zip(rows, runtimes, strict=False)]
    if not measurements:
        raise PipelineError(f"{path}: has no runtimes; expected measured ones")
    return measurements


def _is_text(path: Path) -> bool:
    with open_regular(path) as file:
        return b"\0" not in file.read(TEXT_START)


def read_csv(
    path: Path, columns: Sequence[str], *, required: Collection[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place of each row of a CSV file, and its texts by column.

    A short row lacks its last columns. Empty rows are left out.
    """
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines() or [""]
    except UnicodeDecodeError:
        raise PipelineError(f"{path}: not UTF-8 text; save it as CSV in UTF-8") from None
    names = _cells(lines[0], f"{path}: line 1")
    if not {*required} <= {*names} <= {*columns} or len({*names}) < len(names):
        requirement = f"expected {','.join(columns)}, with commas"
        raise PipelineError(
            f"{path}: line 1: {_header_fault(names, columns, required)}; {requirement}"
        )
    for number, line in enumerate(lines[1:], start=2):
        place = f"{path}: line {number}"
        cells = _cells(line, place)
        if len(cells) > len(names):
            raise PipelineError(f"{place}: has {len(cells)} values; expected {len(names)}")
        if any(cells):
            yield place, dict(zip(names, cells, strict=False))


def _header_fault(names: Sequence[str], columns: Sequence[str], required: Collection[str]) -> str:
    """Return up to three differences of a CSV header, or its start if no column is right."""
    if not {*names} & {*columns}:
        return f"has {','.join(names)[:80]!r}"
    faults = [f"lacks the column {name!r}" for name in required if name not in names]
    faults += [f"has the other column {name[:80]!r}" for name in names if name not in columns]
    faults += [f"has the column {name!r} twice" for name in columns if names.count(name) > 1]
    return ", ".join(faults[:3])


def _cells(line: str, place: str) -> list[str]:
    # A quote that is not closed is an error, so no value has two lines.
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True), [])]
    except csv.Error as error:
        raise PipelineError(f"{place}: {error}; expected values between commas") from None


def _read_runtimes(path: Path, hashes: Sequence[int]) -> list[tuple[int, float]]:
    """Check every row, and leave out those without a runtime."""
    table = read_csv(path, [*Measurement.model_fields], required=("config", "runtime_ns"))
    rows = [_measurement(row, hashes, place) for place, row in table]
    measurements = [(row.config, row.runtime_ns) for row in rows if row.runtime_ns is not None]
    if 0 < len(measurements) < len(rows):
        log.info(f"{path}: {len(rows) - len(measurements)} of {len(rows)} rows have no runtime")
    return measurements


def _measurement(texts: Mapping[str, str], hashes: Sequence[int], place: str) -> Measurement:
    try:
        row = Measurement.from_table({"runtime_ns": "", **texts}, source=place)
    except UsageError as error:
        raise PipelineError(str(error)) from None
    if row.config >= len(hashes):
        raise PipelineError(f"{place}: config {row.config}; expected 0..{len(hashes) - 1}")
    if row.config_hash and row.config_hash != f"{hashes[row.config]:016x}":
        requirement = "expected the same program, --candidates and --seed"
        raise PipelineError(f"{place}: config {row.config} has another hash; {requirement}")
    return row


def request_text(rows: Sequence[int], graph: Graph) -> str:
    """Return the CSV text that `read_runtimes` reads, still without runtimes."""
    hashes = config_hashes(graph)
    lines = [f"{row},{hashes[row]:016x},\n" for row in rows]
    return "".join([",".join(Measurement.model_fields), "\n", *lines])
