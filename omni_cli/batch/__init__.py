"""A batch of requests: read from a file or the command line, driven through the engine, its results written."""
