"""The store: every graph in one file that is mapped when it is read, made anew when its source is.

STORE/{layout/xla/default,…,tile/xla}/{train,valid,test}/GRAPH.safetensors
"""

from dataclasses import replace
from pathlib import Path

from common.errors import PipelineError
from data.graph_store.fingerprint import source_digest
from data.graph_store.stored_graph import (
    STORE_SUFFIX,
    VERSION,
    alphabet_tensors,
    as_written,
    column_tensors,
    group_tensors,
)
from data.graph_store.tensor_file import StreamedTensor, read_facts, write_tensors
from data.graphs.distinct import runtime_groups, tile_hashes
from data.npz.read import Archive
from data.packing.config_encoder import ConfigEncoder
from data.packing.npz_graphs import encode_configs, layout_arrays, tile_arrays
from data.tree import GraphFile


def stored_file(store: Path, file: GraphFile) -> GraphFile:
    """Return where `store` keeps a graph of the official tree."""
    folder = store / file.collection.folder / file.split
    return replace(file, path=folder / f"{file.name}{STORE_SUFFIX}")


def is_fresh(stored: GraphFile, source: GraphFile) -> bool:
    """Tell whether a graph is in the store, by this version, from the source as it is now.

    Raises:
        PipelineError: the source is no whole npz file.
    """
    if not stored.path.is_file():
        return False
    try:
        facts = read_facts(stored.path)
    except PipelineError:
        return False
    return facts.get("version") == VERSION and facts.get("source") == source_digest(source)


def store_graph(source: GraphFile, stored: GraphFile) -> None:
    """Pack one graph of the official tree into the store, whole or not at all.

    Memory stays near that of its nodes and runtimes, whatever the number of configs.

    Args:

    Raises:
        PipelineError: the source is damaged (names file and key), or the disk is full.
    """
    facts = {"version": VERSION, "source": source_digest(source), "id": source.submission_id}
    try:
        stored.path.parent.mkdir(parents=True, exist_ok=True)
        if source.collection.kind == "layout":
            _store_layout(source, stored.path, facts)
        else:
            _store_tile(source, stored.path, facts)
    except OSError as error:  # of the spool; faults of the source and of the new file are lines
        raise PipelineError(
            f"{stored.path}: cannot be written: {error.strerror or error}"
        ) from error


def _store_layout(source: GraphFile, path: Path, facts: dict[str, str]) -> None:
    with Archive(source.path) as archive:
        arrays = layout_arrays(archive)
        n_configs, n_configurable = len(arrays["runtime_ns"]), len(arrays["node_config_ids"])
        with ConfigEncoder(n_configurable, folder=str(path.parent)) as spool:
            encode_configs(archive, n_configs, spool)
            alphabets = spool.alphabets()
            hashes = spool.hashes(alphabets)
            groups = runtime_groups(hashes, arrays["runtime_ns"])
            indices = StreamedTensor(
                dtype=alphabets.index_dtype,
                shape=(n_configs, len(alphabets.sizes)),
                chunks=spool.indices(alphabets),
            )
            tensors = as_written(
                arrays
                | alphabet_tensors(alphabets)
                | group_tensors(groups)
                | column_tensors(arrays)
                | {"config_hashes": hashes}
            )
            write_tensors(path, {**tensors, "config_indices": indices}, facts=facts)


def _store_tile(source: GraphFile, path: Path, facts: dict[str, str]) -> None:
    with Archive(source.path) as archive:
        arrays = tile_arrays(archive)
    hashes = tile_hashes(arrays["config_feat"])
    groups = runtime_groups(hashes, arrays["runtime_ns"])
    tensors = arrays | group_tensors(groups) | column_tensors(arrays) | {"config_hashes": hashes}
    write_tensors(path, as_written(tensors), facts=facts)
