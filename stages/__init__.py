"""The stages of the chain: each module loads, calls the library and writes."""
