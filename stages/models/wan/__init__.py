"""Wan: videos from text, over diffusers' own modules."""
