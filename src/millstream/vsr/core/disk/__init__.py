"""What a replica keeps on disk, and how it is read at a start."""
