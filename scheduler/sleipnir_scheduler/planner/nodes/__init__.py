"""What starting a node of each type means, and what its end means, model loops apart."""
