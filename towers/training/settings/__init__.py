"""Settings: what a run is asked to do, checked before anything expensive starts."""
