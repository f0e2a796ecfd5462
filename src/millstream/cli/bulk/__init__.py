"""Commands that move many documents: load, dump, restore, replicate, tail."""
