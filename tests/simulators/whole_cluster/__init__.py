"""A whole cluster on one seed: real data engines, streams, order takers and decisions."""
