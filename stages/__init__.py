"""The data plane: what runs inside a stage process, and the contract modules shared with the control plane."""
