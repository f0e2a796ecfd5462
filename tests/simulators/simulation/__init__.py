"""Several nodes and their readers, simulated: real cores over a false disk, network and clock.

    make simulate                                  # thousands of seeds
    make simulate ARGS="--seed 1234"               # one, with its trace
    make simulate ARGS="--plant no_fencing"        # how soon a planted mistake is found

`truth` knows what is right, `node` is one node, `link` one connection, `readers` who reads,
`world` the schedule and the checks, `endings` what chance finds too seldom, `plants` the mistakes,
`__main__` the command.
"""
