"""Synthetic data of the official format, with a known cost model behind its runtimes."""
