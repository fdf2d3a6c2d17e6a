"""Getting the official dataset: download, resume, check, unpack."""
