"""Clients of RESP: requests cut and understood, answers in order, pushed messages."""
