"""Shells of views: the processes in which map and reduce functions run."""
