"""Sizes: bytes in words."""


def format_bytes(num_bytes: float) -> str:
  """Returns bytes in words: '512 bytes', '3.6 MB' or '1.25 GB'."""
  if num_bytes < 1e4:
    return f'{int(num_bytes):,} bytes'
  if num_bytes < 1e6:
    return f'{num_bytes / 1e3:.0f} kB'
  return f'{num_bytes / 1e6:.1f} MB' if num_bytes < 1e9 else f'{num_bytes / 1e9:.2f} GB'
