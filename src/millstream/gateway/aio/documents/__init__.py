"""Pages of documents: one, many, attachments, lists, changes, local ones."""
