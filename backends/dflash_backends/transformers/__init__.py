"""The `transformers` engine: any decoder-only model of transformers as a target, the embedded default.

Public: `load.load_target`, `load.from_model`, `target.TransformersTarget`, `demo_model.smollm2_folder`. They
are not imported here, so that registering the engine costs nothing.
"""
