"""The live run: one process a site, a coordinator, and the network between them."""
