"""Pure rules of views: row order, reduce functions, design documents, queries."""
