"""The demonstration: real flights in, the change stream out, Spark views, checked.

`flights` makes the changes, `truth` computes the answers straight from the file and shares no
code with the rest, `run` plays it all, `report` writes plots and a page.
"""
