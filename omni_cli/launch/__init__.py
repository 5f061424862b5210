"""Starts, watches and stops the stage processes of a plan on this machine."""
