"""Documents as HTTP shows them: revision trees, attachments, tokens of the `_changes` feed.

Pure: no file, socket or clock.
"""
