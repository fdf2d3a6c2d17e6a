"""Rankers of compiler configs: GNNs, boosting, losses, metrics and the training engine."""
