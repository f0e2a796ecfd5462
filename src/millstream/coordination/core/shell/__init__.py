"""The interactive shell: commands, replies, output."""
