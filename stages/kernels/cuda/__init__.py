"""Triton kernels of the decoder layers. Imported on a CUDA device or under Triton's interpreter only."""
