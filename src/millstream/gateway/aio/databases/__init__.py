"""Pages of databases and buckets, their design documents and replications."""
