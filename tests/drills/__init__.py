"""Fault drills of the whole pipeline: it mirrors no package, since each drill crosses them all.

A drill disturbs real `python -m pipeline` processes, and then the same command with --resume must
end with the same bytes, or be refused with one clear line. Faults of one part alone are tested
beside it: a store on a full disk in tests/data/graph_store, a killed writer in tests/common,
downloads in tests/data/fetch, searches in tests/pipeline/tuning.
"""
