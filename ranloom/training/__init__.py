"""Elastic multi-site training: ledger, rerouting, rebalancing, runtime, simulator."""
