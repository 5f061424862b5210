"""What a stage computes."""
