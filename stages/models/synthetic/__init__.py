"""A three-stage family without weights, for load and fault tests."""
