"""The lifecycle trace: recorded, read, checked, shown."""
