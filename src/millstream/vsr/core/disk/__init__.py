"""The files of a replica, and how they are read at a start."""
