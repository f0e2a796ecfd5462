"""Documents with revision trees, design documents, attachments that nothing needs."""
