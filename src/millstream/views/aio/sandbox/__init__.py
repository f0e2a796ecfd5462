"""Functions of design documents, run in processes that can do nothing else."""
