"""All documents and all changes of a database whose partitions are on several nodes."""
