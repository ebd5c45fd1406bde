"""A platform for SGLang on a CPU, in torch: for development, CI and trying things out."""
