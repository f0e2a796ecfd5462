"""Documents of a database read and written at the node that has them."""
