"""Documents over HTTP: revisions, attachments, local documents, changes."""
