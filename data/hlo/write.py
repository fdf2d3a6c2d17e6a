"""From protobuf files to npz files of the dataset's format: what the command `featurize` does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from common.errors import UsageError
from common.progress import progress
from data.graphs.node_layouts import Padding
from data.hlo.node_features import PADDINGS
from data.hlo.programs import HloProgram, program_name, read_programs
from data.npz.write import Member, write_npz

# The keys of each kind of file in the dataset's order. A module without configs is no file of the
# dataset: its arrays can be looked at and compared, but there is nothing to rank.
KEYS = {
    "layout": (
        *("node_feat", "node_opcode", "edge_index", "node_config_feat", "node_config_ids"),
        *("config_runtime", "node_splits"),
    ),
    "tile": (
        *("node_feat", "node_opcode", "edge_index", "config_feat", "config_runtime"),
        "config_runtime_normalizers",
    ),
    "module": ("node_feat", "node_opcode", "edge_index", "node_splits"),
}


@dataclass(frozen=True)
class FeaturizedGraph:
    """One graph that was written, or is about to be.

    Attributes:
        path: the npz file.
        kind: "layout", "tile", or "module" for an HLO module that came without configs.
        n_nodes, n_edges, n_configs: sizes.
        n_failed: runs that were left out because they failed.
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

    Args:
        paths: tuning data or HLO modules; what each file is, is told from its content.
        out: folder for the npz files; made if it is missing.
        padding: "zero" as in the dataset, or "minus-one".

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
        written += featurize_file(path, out, padding=chosen)
        progress("featurize", done, len(paths))
    return written


def featurize_file(path: Path, out: Path, *, padding: Padding) -> list[FeaturizedGraph]:
    """Write the graphs of one protobuf file to `out`.

    A module gives `<stem>.npz`; each kernel of a TuningData gives `<stem>_<fingerprint>.npz`, the
    fingerprint as signed hexadecimal number. All graphs are made before the first is written.

    Args:
        path: tuning data or an HLO module; its stem is the program's name.
        out: folder for the npz files; made if it is missing.
        padding: "zero" as in the dataset, or "minus-one".

    Raises:
        PipelineError: the file is damaged or of another kind, or `out` cannot be written.
    """
    made = [_gathered(program, out) for program in read_programs(path, padding=padding)]
    for written, arrays in made:
        members: dict[str, Member] = {key: arrays[key] for key in KEYS[written.kind]}
        write_npz(written.path, members)
    return [written for written, _ in made]


def _gathered(program: HloProgram, out: Path) -> tuple[FeaturizedGraph, dict[str, NDArray[Any]]]:
    """Put together what is said of a program and the arrays of its file."""
    graph, configs = program.graph, program.configs
    arrays: dict[str, NDArray[Any]] = {
        "node_feat": graph.node_feat,
        "node_opcode": graph.node_opcode,
        "edge_index": graph.edge_index,
        "node_splits": graph.node_splits,
        **(configs.arrays if configs else {}),
    }
    written = FeaturizedGraph(
        path=out / f"{program.name}.npz",
        kind=configs.kind if configs else "module",
        n_nodes=graph.n_nodes,
        n_edges=len(graph.edge_index),
        n_configs=configs.n_configs if configs else 0,
        n_failed=configs.n_failed if configs else 0,
    )
    return written, arrays
