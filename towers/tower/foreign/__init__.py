"""Foreign: what models bring along that were written for a loop on one device."""
