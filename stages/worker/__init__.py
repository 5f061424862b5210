"""The loop of one stage process."""
