"""One graph: read from its npz file, or packed into the store and mapped from there.

STORE/{layout/xla/default,…,tile/xla}/{train,valid,test}/GRAPH.safetensors

The library safetensors writes and describes these files, and a checksum seals them. The facts of a
graph are one value of the header, because the library does not fix the order of several values.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from common.errors import PipelineError
from common.files import SEAL_KEY, UNSEALED, check_seal, map_file, open_regular, write_sealed
from data.graphs.graph import LAYOUT, TILE, Graph, LayoutGraph, TileGraph
from data.graphs.packing import Codebooks, PackedConfigs
from data.npz.archive import Archive
from data.npz.graphs import encode_configs, graph_arrays
from data.tree import GraphFile

STORE_SUFFIX = ".safetensors"
# Files of another version are packed again.
VERSION = "2"
FACTS = "facts"
# Tensors of the configs of a layout graph: the parts of Codebooks, and the indices.
CONFIGS = ("vector_codes", "column_of", "column_vectors", "column_sizes", "config_indices")
TYPES = {
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "F32": np.float32,
    "I64": np.int64,
}
NOT_A_HEADER = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
REMEDY = "remove the file, and it is made again"


def is_stored(file: GraphFile) -> bool:
    return file.path.suffix == STORE_SUFFIX


def stored_file(store: Path, file: GraphFile) -> GraphFile:
    folder = store / file.collection.folder / file.split
    return replace(file, path=folder / f"{file.name}{STORE_SUFFIX}")


def is_fresh(target: GraphFile, source: GraphFile) -> bool:
    """Return whether the store has a graph in this version, packed from the present source."""
    try:
        facts = read_facts(target.path)
        return facts.get("version") == VERSION and facts.get("source") == source_digest(source)
    except PipelineError:
        return False  # packing will report a damaged source


def fingerprint(files: Iterable[GraphFile]) -> str:
    """Digest the places and contents of files of a tree or of the store, as 16 hex digits."""
    return fingerprint_of(source_digests(files))


def fingerprint_of(digests: Mapping[str, str]) -> str:
    """Return the fingerprint of files with such `source_digests`."""
    lines = "".join(f"{digest}\n" for digest in digests.values())
    return hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()


def source_digests(files: Iterable[GraphFile]) -> dict[str, str]:
    """Return the digest of each file by its place, for example "tile:xla/train/conv", sorted."""
    order = sorted(files, key=lambda file: (file.collection.name, file.split, file.name))
    return {f"{file.part}/{file.name}": source_digest(file) for file in order}


def source_digest(file: GraphFile) -> str:
    """Digest the place, array names, sizes and checksums of an npz file, as 16 hex digits.

    Only the index of the archive is read. A file of the store contains the digest of its source.
    """
    if file.path.suffix != ".npz":
        return read_facts(file.path).get("source", "")
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{file.collection.name}/{file.split}/{file.name}\n".encode())
    with Archive(file.path) as archive:
        for key, (n_bytes, checksum) in sorted(archive.contents.items()):
            digest.update(f"{key} {n_bytes} {checksum}\n".encode())
    return digest.hexdigest()


def store_graph(source: GraphFile, target: GraphFile) -> None:
    """Pack one graph of the official tree into the store."""
    facts = {"version": VERSION, "source": source_digest(source), "id": source.submission_id}
    text = json.dumps({**facts, SEAL_KEY: UNSEALED}, sort_keys=True)
    tensors = sorted(graph_tensors(source).items())
    content = save({name: np.asarray(array, order="C") for name, array in tensors}, {FACTS: text})
    write_sealed(target.path, content, durable=False)


def graph_tensors(file: GraphFile, archive: Archive | None = None) -> Mapping[str, NDArray[Any]]:
    """Return the tensors, by name, that the store has of a graph, or would have.

    `archive` is the npz file if it is open already.
    """
    if is_stored(file):
        return open_tensors(file.path)
    with archive or Archive(file.path) as npz:
        arrays = graph_arrays(npz, file.collection.kind)
        if file.collection.kind == "tile":
            return arrays
        n_configs, n_configurable = len(arrays["runtime_ns"]), len(arrays["node_config_ids"])
        configs = encode_configs(npz, n_configs, n_configurable)
    codebooks = configs.codebooks
    parts = (codebooks.codes, codebooks.column_of, codebooks.vectors, codebooks.sizes)
    return arrays | dict(zip(CONFIGS, (*parts, configs.indices), strict=True))


def read_graph(file: GraphFile, archive: Archive | None = None) -> Graph:
    """Read a graph from the tree, the store, or the archive of its file."""
    return (read_layout if file.collection.kind == "layout" else read_tile)(file, archive)


def read_layout(file: GraphFile, archive: Archive | None = None) -> LayoutGraph:
    tensors: Mapping[str, Any] = graph_tensors(file, archive)
    fields = {name: tensors[name] for name in LAYOUT}
    *parts, indices = (tensors[name] for name in CONFIGS)
    return LayoutGraph(file=file, configs=PackedConfigs(Codebooks(*parts), indices), **fields)


def read_tile(file: GraphFile, archive: Archive | None = None) -> TileGraph:
    tensors: Mapping[str, Any] = graph_tensors(file, archive)
    return TileGraph(file=file, **{name: tensors[name] for name in TILE})


def read_facts(path: Path) -> dict[str, str]:
    """Return the facts in the header of a stored file, for example the digest of its source."""
    with open_regular(path) as file:
        return _read_header(path, file)[0]


def open_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Map the tensors of a file as read-only views, by name. The first call checks every byte."""
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
        _check_bytes_once(path, (state.st_ino, state.st_size, state.st_mtime_ns))
        facts, header = _read_header(path, file)
        if (version := facts.get("version")) != VERSION:
            problem = f"is of store version {version!s:.8}; expected {VERSION}"
            raise PipelineError(f"{path}: {problem}; {REMEDY}")
        start = file.tell()
        memory = map_file(file)
    tensors = dict[str, NDArray[Any]]()
    for name, entry in header.items():
        shape, offset = entry["shape"], start + entry["data_offsets"][0]
        values: NDArray[Any] = np.frombuffer(
            memory, TYPES[entry["dtype"]], math.prod(shape), offset
        )
        tensors[name] = values.reshape(shape)
    return tensors


@cache
def _check_bytes_once(path: Path, identity: tuple[int, ...]) -> None:
    check_seal(path, REMEDY)


def _read_header(path: Path, file: IO[bytes]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the facts, and the entry of each tensor. The file is then at the first tensor."""
    try:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        return json.loads(header.pop("__metadata__")[FACTS]), header
    except NOT_A_HEADER as error:
        raise PipelineError(f"{path}: damaged: it has no readable header; {REMEDY}") from error
