"""One replica: normal case, view change, recovery, state transfer, snapshots, reconfiguration."""
