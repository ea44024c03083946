"""The one exception a user's mistake raises."""


class InputError(Exception):
    """Something the user gave cannot be used as it is.

    The message is one sentence (or two) that says what was expected, what was found, in which file and
    tensor, and what to do. The runner prints it without a traceback and exits with code 2.
    """
