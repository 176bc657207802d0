"""Device cards, decode latency and roofline models, SM partitions."""
