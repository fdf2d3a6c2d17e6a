"""What a set of graph files holds, as one short number: equal data, equal fingerprint."""

import hashlib
from collections.abc import Iterable

from data.graph_store.tensor_file import read_facts
from data.npz.read import Archive
from data.tree import GraphFile


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
