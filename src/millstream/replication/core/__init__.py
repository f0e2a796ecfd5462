"""What replication decides: no sockets, clocks, files or dice."""
