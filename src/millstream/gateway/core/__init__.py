"""What the HTTP front door decides: error bodies, cookies, origins, what it needs of a node."""
