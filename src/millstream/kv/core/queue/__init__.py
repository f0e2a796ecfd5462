"""The mutation queue: changes in memory, and who reads them."""
