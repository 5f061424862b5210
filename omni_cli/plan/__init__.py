"""From configuration to one checked execution plan."""
