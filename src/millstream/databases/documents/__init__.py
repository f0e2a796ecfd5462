"""Documents of a database, read and written at the node that owns them."""
