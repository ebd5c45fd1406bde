"""Registers with SGLang (filled in with the worker)."""


def register_algorithm() -> None:
    """Nothing yet."""
