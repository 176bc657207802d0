"""Latency profiles and the (MCS, PRB, SM) lookup table made of them."""
