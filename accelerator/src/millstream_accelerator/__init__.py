"""Compiled twins of Millstream's hottest functions; chosen by `millstream.accelerated`."""
