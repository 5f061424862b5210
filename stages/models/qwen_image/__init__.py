"""Qwen-Image: pictures from text, over diffusers' own modules."""
