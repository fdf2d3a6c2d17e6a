"""Fault drills of the whole pipeline.

A drill disturbs real `python -m pipeline` processes. The same command with --resume must then end
with the same bytes, or fail with one clear line. Faults of a single package have tests elsewhere:

- tests/data/graph_store: a store on a full disk
- tests/common: a killed writer
- tests/data/fetch: downloads
- tests/pipeline/tuning: searches
"""
