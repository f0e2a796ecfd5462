"""What the pages need of the node around them."""
