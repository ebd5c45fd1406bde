"""Other people's decoding loops on the same model, for `dflash-core bench`."""
