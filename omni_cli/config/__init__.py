"""From overrides and recipes to frozen, validated configuration."""
