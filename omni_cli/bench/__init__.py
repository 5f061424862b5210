"""What `omni bench` measures, and how: workloads, figures, reports. The verbs only choose and print."""
