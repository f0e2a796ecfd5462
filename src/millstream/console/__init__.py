"""The console: static files of the page that shows a node or a cluster in a browser."""
