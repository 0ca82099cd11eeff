"""Retrieval-augmented generation (Lewis et al. 2020) as a distributed system on Ray."""

__version__ = "0.1.0"
