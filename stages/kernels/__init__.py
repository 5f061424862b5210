"""Kernels behind one entry each: the torch implementation for every device, faster ones where there are."""
