"""Says what this package provides; imports none of it."""

from dflash_core.hookspecs import Providers, hookimpl


@hookimpl
def dflash_verifiers() -> Providers:
    return {"patient": "dflash_example.patient:PatientVerifier"}


@hookimpl
def dflash_dialects() -> Providers:
    return {"prefixed": "dflash_example.prefixed:DIALECT"}


@hookimpl
def dflash_commands() -> Providers:
    return {"hello": "dflash_example.hello:hello_command"}
