"""Request media: opened, checked and decoded before anything is scheduled."""
