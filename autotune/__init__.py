"""Measure JAX programs on this machine: choose layouts, compile, run, time."""
