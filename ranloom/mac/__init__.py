"""The uplink cell: slot loop, scheduler, HARQ, reservation controllers, KPIs."""
