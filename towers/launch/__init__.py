"""Launch: commands of the annex towers-launch, as `python -m towers.launch`."""
