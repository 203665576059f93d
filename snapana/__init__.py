"""Offline analyzer of PyTorch GPU memory snapshots."""
