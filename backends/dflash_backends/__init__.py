"""Engines: each subpackage is one adapter and holds no algorithm."""
