"""Everything this package raises on purpose. A message says what was given, what is allowed, what to do."""


class DFlashError(Exception):
    """Base of all errors that a user can cause and mend."""


class CheckpointError(DFlashError):
    """A draft checkpoint that cannot be read as it stands; the message names the file and the key."""


class PairError(DFlashError):
    """A draft and a target that do not fit each other."""


class SettingsError(DFlashError):
    """A setting that is unknown, malformed, or contradicts another one."""


class RequestError(DFlashError):
    """A request that cannot be served: empty, too long, or with arguments that make no sense."""


class UnsupportedError(DFlashError):
    """A combination that this version refuses, with the reason."""


class PluginError(DFlashError):
    """A plugin that broke a hook's contract."""
