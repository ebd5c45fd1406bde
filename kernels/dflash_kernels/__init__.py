"""Pure operations over tensors. One folder an op; `reference.py` is its specification."""
