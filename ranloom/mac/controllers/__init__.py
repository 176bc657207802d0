"""Reservation controllers: how many SMs the GPU keeps for the RAN in each UL slot."""
