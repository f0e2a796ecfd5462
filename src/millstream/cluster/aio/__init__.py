"""Shells of the cluster manager: the node agent, the orchestrator, messages between nodes."""
