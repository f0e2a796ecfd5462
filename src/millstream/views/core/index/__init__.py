"""An index: trees, commits, roots to go back to, rows of documents."""
