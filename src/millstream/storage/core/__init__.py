"""Pure parts of the document store, over the disk port and the by-id map."""
