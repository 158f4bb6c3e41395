"""What ends a command with a message."""


class UnreadableError(Exception):
    """The stack file or the cluster can't be read; the text is for the user."""
