"""Coverage-guided fuzzing of the doors where files from outside come in: `make fuzz`."""
