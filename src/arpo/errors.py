"""One exception for everything a user can put right.

Raised with a message that names the file, row, key or tool and says what to do; the command line prints it
without a traceback and exits with its code. Anything else that escapes is a bug of ours and keeps its traceback.
"""


class ArpoError(Exception):
    """A mistake in the input or the environment that the user can mend. `exit_code` is the process's."""

    exit_code = 2


class ConfigError(ArpoError):
    """The configuration is wrong: unknown key, contradiction, unusable value."""


class DataError(ArpoError):
    """A file is missing, truncated or holds a row that cannot be used."""


class ToolDownError(ArpoError):
    """A tool is out of order for everybody, and its settings say that the step must not go on without it."""

    exit_code = 6


class ToolSetupError(ArpoError):
    """A tool that the prompt offers cannot be built; training must not start without it."""


class CheckpointError(ArpoError):
    """No usable checkpoint, or one that belongs to another model or tokenizer."""


class EngineError(ArpoError):
    """The engine could not answer one request, retries included; the trajectory that asked for it has no reward."""

    exit_code = 5


class EngineDownError(EngineError):
    """The engine is gone or refuses everybody (no connection, wrong key, dead process); the rollout stops."""


class VerifierError(ArpoError):
    """Answers cannot be compared: the processes that compare formulas do not start, or fail at anything."""

    exit_code = 5


class StorageError(ArpoError):
    """The disk refused a write; what was saved before is intact."""

    exit_code = 3
