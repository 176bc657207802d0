"""What UEs offer and through which channel: packet arrivals and SINR."""
