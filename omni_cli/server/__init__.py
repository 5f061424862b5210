"""An OpenAI-compatible HTTP server over the engine. Each route is a thin adapter over one stream of output chunks."""
