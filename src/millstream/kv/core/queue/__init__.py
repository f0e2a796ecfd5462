"""The mutation queue: changes in memory, and their readers."""
