"""From graphs as stored to what models read: pruning, padding, node and config features."""
