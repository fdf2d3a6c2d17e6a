"""Turn one protobuf file into npz files of the dataset's format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from data.errors import PipelineError
from data.synthetic.archive import Member, write_npz
from features.hlo.files import read_hlo_file
from features.hlo.graph import HloGraph, check_layouts, featurize_module
from features.hlo.tuning_data import tuned_configs
from features.padding import Padding

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
    content = read_hlo_file(path)
    stem = program_name(path)
    made: dict[str, tuple[FeaturizedGraph, dict[str, NDArray[Any]]]] = {}
    for module in content.modules:
        graph = featurize_module(module, padding=padding, source=str(path))
        made[stem] = _gathered(out / f"{stem}.npz", "module", graph, {})
    for entry in content.tuned:
        kernel = f"{stem}_{signed_hex(entry.fingerprint)}"
        name, source = (kernel, f"{path}, {kernel}") if content.holds_many else (stem, str(path))
        if name in made:
            raise PipelineError(f"{source}: a second kernel of this fingerprint; expected one")
        graph = featurize_module(entry.module, padding=padding, source=source)
        check_layouts(graph, source)
        configs = tuned_configs(entry, graph.n_nodes, source)
        made[name] = _gathered(
            out / f"{name}.npz",
            configs.kind,
            graph,
            configs.arrays,
            n_configs=configs.n_configs,
            n_failed=configs.n_failed,
        )
    for written, arrays in made.values():
        members: dict[str, Member] = {key: arrays[key] for key in KEYS[written.kind]}
        write_npz(written.path, members)
    return [written for written, _ in made.values()]


def program_name(path: Path) -> str:
    """Return a file's name without its endings .pb and .hlo, which XLA's dumps have."""
    return path.name.removesuffix(".pb").removesuffix(".hlo") or path.name


def signed_hex(fingerprint: int) -> str:
    """Return an unsigned 64-bit number as signed hexadecimal: 2**64 - 1 gives "-1"."""
    return f"{fingerprint - (1 << 64) if fingerprint >= 1 << 63 else fingerprint:x}"


def _gathered(
    path: Path,
    kind: str,
    graph: HloGraph,
    config_arrays: dict[str, NDArray[Any]],
    *,
    n_configs: int = 0,
    n_failed: int = 0,
) -> tuple[FeaturizedGraph, dict[str, NDArray[Any]]]:
    """Put together what is said of a graph and the arrays of its file."""
    arrays: dict[str, NDArray[Any]] = {
        "node_feat": graph.node_feat,
        "node_opcode": graph.node_opcode,
        "edge_index": graph.edge_index,
        "node_splits": graph.node_splits,
        **config_arrays,
    }
    n_edges = len(graph.edge_index)
    return FeaturizedGraph(path, kind, graph.n_nodes, n_edges, n_configs, n_failed), arrays
