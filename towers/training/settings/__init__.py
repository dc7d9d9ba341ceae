"""Settings: what a run does, checked before anything expensive starts."""
