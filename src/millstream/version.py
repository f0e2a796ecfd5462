"""The version of this package, where its own parts can read it without its public front."""

__all__ = ["__version__"]

__version__ = "0.1.0"
