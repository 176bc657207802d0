"""NR LDPC codes (38.212): base graphs, encoder, decoders."""
