"""Qwen3-Omni over transformers' own modules: Thinker, Talker, Code2Wav."""
