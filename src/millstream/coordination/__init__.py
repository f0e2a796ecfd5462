"""Coordination: small replicated state that nodes and applications agree on."""
