"""The one exception that reaches the user as a single line."""


class PipelineError(Exception):
    """The input or the world is at fault: a bad file, a refused upload, no space left.

    The message is one line that says what is wrong, where (file, key, row), what was expected
    and, where it is not obvious, what to do. The command line prints it and exits with 1.
    """


class OutOfTime(Exception):  # noqa: N818 — no error
    """Work stopped where it can be gone on with, since its time is over. No fault.

    The command line says so in one line and exits with 0.
    """


class UsageError(PipelineError):
    """The command was called wrongly: an unknown recipe key, a folder that is in the way.

    The command line prints it and exits with 2.
    """
