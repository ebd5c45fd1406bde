"""Systems under test: the embedded engine in any settings, and endpoints."""
