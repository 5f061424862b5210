"""Stable Diffusion 3: pictures from text, over diffusers' own modules."""
