"""How payloads reach the consumer of an edge."""
