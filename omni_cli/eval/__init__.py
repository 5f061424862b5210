"""`omni eval`: whether the answers of a checkpoint are right, asked through omni's own serving path."""
