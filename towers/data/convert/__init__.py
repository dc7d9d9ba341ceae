"""Convert: commands of the annex towers-data, as `python -m towers.data.convert`."""
