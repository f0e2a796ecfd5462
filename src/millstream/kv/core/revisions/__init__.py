"""Documents with revision trees, design documents, unused attachments."""
