"""Draft checkpoints: one file per on-disk layout, and what reads, writes, converts and checks them.

`load` and `save` move a checkpoint between a folder and memory, `convert` between layouts; `inspect` reports
what a folder holds, `validate` what is wrong with it, `pair` whether it fits a target.
"""
