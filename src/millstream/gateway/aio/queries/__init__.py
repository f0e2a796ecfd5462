"""Pages of views and of declarative queries."""
