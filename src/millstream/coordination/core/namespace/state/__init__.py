"""What a namespace is: elements with contents, rights, settings, holders, waiters, events."""
