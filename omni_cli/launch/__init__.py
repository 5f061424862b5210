"""The stage processes of a plan: started, watched, stopped, and nothing of them left behind."""
