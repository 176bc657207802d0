"""3GPP NR facts: numerology and TDD, MCS tables, transport blocks, segmentation, BLER."""
