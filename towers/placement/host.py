"""The host: this process's CPU, which holds the input, the counters and shared variables."""

HOST = '/device:CPU:0'


def is_gpu(device: str) -> bool:
  """Returns whether a device string names a GPU."""
  return 'GPU' in device.upper()  # TensorFlow takes /gpu:0 as well.
