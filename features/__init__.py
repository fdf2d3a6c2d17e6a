"""Prepare stored graphs for models: pruning, padding, node features and config features."""
