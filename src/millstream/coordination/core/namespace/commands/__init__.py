"""What each command does to a namespace."""
