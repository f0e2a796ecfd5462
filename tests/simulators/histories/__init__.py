"""Histories of clients: what each asked, when, and what it was told; and whether that can be true.

`events` is the format and who writes it, `registers` says what a register may answer, `versions`
compares the order that replies tell with what was seen, `search` looks for an order without being
told one; `locks`, `queues`, `tickets` and `watches` are of other things, `check` of all.
`python -m simulators.histories FILE...` checks files.
"""
