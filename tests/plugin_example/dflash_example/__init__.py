"""What a package outside of the repository looks like that extends dflash-core."""
