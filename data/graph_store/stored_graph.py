"""One graph of the store: packed from its npz file, and read as views of the mapped file.

STORE/{layout/xla/default,…,tile/xla}/{train,valid,test}/GRAPH.safetensors

n nodes, e edges, c configs of k configurable nodes in m columns, u distinct layout vectors.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from numpy.typing import NDArray

from common.errors import PipelineError
from data.graph_store.tensor_file import open_tensors, read_facts, write_tensors
from data.graphs.checks import CONFIGS, LAYOUT, TILE, check_layout, check_shapes, check_tile
from data.npz.graphs import encode_configs, graph_arrays
from data.npz.read import Archive
from data.packing.configs import Alphabets, PackedConfigs, check_packed
from data.tree import GraphFile

STORE_SUFFIX = ".safetensors"
VERSION = "2"  # of what the files hold; another one makes them anew


def is_stored(file: GraphFile) -> bool:
    """Tell whether a file is one of the store."""
    return file.path.suffix == STORE_SUFFIX


def stored_file(store: Path, file: GraphFile) -> GraphFile:
    folder = store / file.collection.folder / file.split
    return replace(file, path=folder / f"{file.name}{STORE_SUFFIX}")


def is_fresh(stored: GraphFile, source: GraphFile) -> bool:
    """Tell whether a graph is in the store, by this version, from the source as it is now."""
    try:
        facts = read_facts(stored.path)
        return facts.get("version") == VERSION and facts.get("source") == source_digest(source)
    except PipelineError:
        return False  # of a damaged source packing says what it is


def fingerprint(files: Iterable[GraphFile]) -> str:
    """Digest the places and contents of `files`; 16 hex digits.

    Raises:
        PipelineError: a file is not a whole npz archive, or damaged in the store.
    """
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted(files, key=lambda file: (file.collection.name, file.split, file.name)):
        digest.update(f"{source_digest(file)}\n".encode())
    return digest.hexdigest()


def source_digest(file: GraphFile) -> str:
    """Digest one npz file's place, array names, sizes and checksums; 16 hex digits.

    Only the archive's index is read; of a packed file, what it says of its source.

    Raises:
        PipelineError: the file is damaged.
    """
    if file.path.suffix != ".npz":
        return read_facts(file.path).get("source", "")
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{file.collection.name}/{file.split}/{file.name}\n".encode())
    with Archive(file.path) as archive:
        for key, (n_bytes, checksum) in sorted(archive.contents.items()):
            digest.update(f"{key} {n_bytes} {checksum}\n".encode())
    return digest.hexdigest()


def store_graph(source: GraphFile, stored: GraphFile) -> None:
    """Pack one graph of the official tree into the store, whole or not at all.

    Raises:
        PipelineError: the source is damaged (names file and key), or the disk is full.
    """
    facts = {"version": VERSION, "source": source_digest(source), "id": source.submission_id}
    write_tensors(stored.path, graph_tensors(source), facts=facts)


def graph_tensors(file: GraphFile) -> Mapping[str, NDArray[Any]]:
    """Return what the store keeps of a graph: from there, read-only, or from its npz file.

    Raises:
        PipelineError: one line that names the file, the key and what was expected.
    """
    if is_stored(file):
        opened = open_tensors(file.path)
        _check_once(file, opened.identity)  # every value, the first time in a process
        return opened.tensors
    with Archive(file.path) as archive:
        arrays = graph_arrays(archive, file.collection.kind)
        if file.collection.kind == "tile":
            return arrays
        n_configs, n_configurable = len(arrays["runtime_ns"]), len(arrays["node_config_ids"])
        configs = encode_configs(archive, n_configs, n_configurable)
    alphabets = configs.alphabets
    parts = (alphabets.codes, alphabets.column_of, alphabets.vectors, alphabets.sizes)
    return arrays | dict(zip(CONFIGS, (*parts, configs.indices), strict=True))


@cache
def _check_once(file: GraphFile, identity: tuple[int, ...]) -> None:
    def fail(name: str, problem: str) -> NoReturn:
        raise PipelineError(f"{file.path}: damaged: tensor '{name}' {problem}")

    opened = open_tensors(file.path)
    tensors, version = opened.tensors, opened.facts.get("version")
    if version != VERSION:
        raise PipelineError(f"{file.path}: is of store version {version!s:.8}; expected {VERSION}")
    is_layout = file.collection.kind == "layout"
    check_shapes(tensors, {**LAYOUT, **CONFIGS} if is_layout else TILE, fail)
    if is_layout:
        check_layout(tensors, fail)
        check_packed(configs_of(tensors), fail)
    else:
        check_tile(tensors, fail)


def configs_of(tensors: Mapping[str, NDArray[Any]]) -> PackedConfigs:
    """Return the packed configs among the tensors of a layout graph."""
    *parts, indices = (tensors[name] for name in CONFIGS)
    return PackedConfigs(Alphabets(*parts), indices)
