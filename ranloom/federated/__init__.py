"""Federated rounds whose updates are aggregated at the gNB."""
