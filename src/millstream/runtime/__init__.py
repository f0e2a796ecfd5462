"""The doors to the operating system: files, clock, processes, tasks, logs, metrics."""
