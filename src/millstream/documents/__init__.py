"""Documents with trees of revisions: what is stored, changed, shown; no IO."""
