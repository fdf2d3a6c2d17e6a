"""Programs to measure: a catalogue of networks by family, and users' own functions."""

from data.collect.programs.catalogue import SPLIT_OF_FAMILY, catalogue, split_of
from data.collect.programs.loading import load_program

__all__ = ["SPLIT_OF_FAMILY", "catalogue", "load_program", "split_of"]
