"""Read, check and make the dataset's files: npz graphs with compiler configs and runtimes."""
