"""Launch: the commands of the annex towers-launch, by the names of `python -m towers.launch`."""
