"""What a stage does next; pure Python, no tensors."""
