"""DFlash speculative decoding, independent of any engine."""
