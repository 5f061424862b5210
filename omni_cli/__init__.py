"""The control plane: configuration, planning, launching, orchestration, traces. It never touches a tensor."""
