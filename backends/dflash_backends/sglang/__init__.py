"""SGLang: the speculative algorithm `DFLASH_CORE`, and a platform that runs SGLang on a CPU.

SGLang is imported inside SGLang's own processes only, by what its entry points call.
"""
