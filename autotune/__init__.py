"""Measure JAX programs on this machine: choose layouts or tiles, compile, run, time."""
