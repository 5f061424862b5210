"""Request media: opened, sniffed and decoded before anything is scheduled. `omni run` and the server
share it.

It knows nothing of models, stages or HTTP, starts no process, and fetches nothing from a network.
"""
