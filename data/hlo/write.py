"""From protobuf files to npz files of the dataset's format: what the command `featurize` does."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common.errors import UsageError
from common.progress import progress
from data.hlo.node_features import PADDINGS
from data.hlo.programs import HloProgram, program_name, read_programs
from data.npz.graphs import LAYOUT_KEYS, SHARED_KEYS, TILE_KEYS
from data.npz.write import write_npz

# A module without configs is no file of the dataset: its arrays can be looked at and compared, but
# there is nothing to rank.
KEYS = {"layout": LAYOUT_KEYS, "tile": TILE_KEYS, "module": (*SHARED_KEYS, "node_splits")}


class FeaturizedGraph(NamedTuple):
    """One graph that was written; `kind` is "module" for an HLO module that came without configs.

    `n_failed` runs were left out because they failed.
    """

    path: Path
    kind: str
    n_nodes: int
    n_edges: int
    n_configs: int
    n_failed: int


def featurize_files(
    paths: Sequence[Path], out: Path, *, padding: str = "zero"
) -> list[FeaturizedGraph]:
    """Write the graphs of protobuf files to `out`, in the order of the files.

    A module gives `<stem>.npz`; each kernel of a TuningData gives `<stem>_<fingerprint>.npz`, the
    fingerprint as signed hexadecimal number.

    Raises:
        UsageError: unknown padding, no file, or two files that would be written to one.
        PipelineError: the first file at fault; those before it are written, it is not.
    """
    chosen = next((known for known in PADDINGS if known == padding), None)
    if chosen is None:
        raise UsageError(f"--padding {padding}: no such padding; known: {', '.join(PADDINGS)}")
    if not paths:
        raise UsageError("no file given; expected tuning data or HLO modules (.pb)")
    first: dict[str, Path] = {}
    for path in paths:
        other = first.setdefault(program_name(path), path)
        if other is not path:
            raise UsageError(
                f"{path}: would be written over what {other} gives; rename one of them, "
                "or give them different --out folders"
            )
    written = []
    for done, path in enumerate(paths, start=1):
        # All graphs of a file are made before the first is written.
        written += [_write(program, out) for program in read_programs(path, padding=chosen)]
        progress("featurize", done, len(paths))
    return written


def _write(program: HloProgram, out: Path) -> FeaturizedGraph:
    graph, configs = program.graph, program.configs
    arrays = graph.arrays | (configs.arrays if configs else {})
    path, kind = out / f"{program.name}.npz", configs.kind if configs else "module"
    write_npz(path, {key: arrays[key] for key in KEYS[kind]})
    n_configs, n_failed = (len(configs.run_numbers), configs.n_failed) if configs else (0, 0)
    return FeaturizedGraph(path, kind, graph.n_nodes, len(graph.edge_index), n_configs, n_failed)
