"""PNG: images written as PNGs, without TensorFlow."""

import struct
import zlib

import numpy as np


def encode_png(image: np.ndarray) -> bytes:
  """Returns an image `[height, width, 1 or 3]` uint8 as a PNG; nothing is lost.

  Format: W3C, "Portable Network Graphics specification", colour types 0 and 2, each row behind
  filter type 0.
  """
  height, width, channels = image.shape
  rows = np.zeros([height, 1 + width * channels], np.uint8)
  rows[:, 1:] = image.reshape(height, -1)

  def chunk(kind, content):
    return struct.pack('>I', len(content)) + kind + content + struct.pack(
        '>I', zlib.crc32(kind + content))

  header = struct.pack('>IIBBBBB', width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
  return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) +
          chunk(b'IDAT', zlib.compress(rows.tobytes(), 6)) + chunk(b'IEND', b''))
