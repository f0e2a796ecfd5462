"""Pure rules of trees: nodes as bytes, rewriting, bulk loading, reading, checking."""
