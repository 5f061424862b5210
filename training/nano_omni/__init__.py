"""nano-omni: a small model in Qwen3-Omni's layout that answers, speaks, sees and hears."""
