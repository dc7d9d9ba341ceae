"""Convert: images of any kind as sharded TFRecords."""
