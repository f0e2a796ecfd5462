"""Copies of a partition that follow others: replica streams, take-over, moves, durability."""
