"""Measuring: the built-in request sets."""
