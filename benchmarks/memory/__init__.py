"""Memory that towers take."""
