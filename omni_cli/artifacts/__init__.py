"""What a run leaves on disk, and the same encodings in memory for the server.

It takes finished text, samples and pixels; it knows nothing of stages, schedulers or HTTP.
"""
