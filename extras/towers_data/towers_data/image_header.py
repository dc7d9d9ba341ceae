"""Image header: format and size of an encoded image, read off its first bytes; nothing is decoded.

  read_image_header(content)      # ImageHeader(kind='jpeg', height=375, width=500)

A decoder allocates what a header declares, so check the header first: a few hundred bytes can
declare 65,535 by 65,535 pixels.
"""

import struct
from typing import NamedTuple

# Markers that stand alone, without a length: TEM, RST0 to RST7, SOI.
_LONE_JPEG_MARKERS = {0x01} | set(range(0xD0, 0xD9))
# Start of frame, of all kinds; C4, C8 and CC between them are something else.
_JPEG_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_OTHERS = ((b'GIF8', 'a GIF'), (b'BM', 'a BMP'), (b'RIFF', 'a WebP'), (b'II*\0', 'a TIFF'),
           (b'MM\0*', 'a TIFF'))


class ImageHeader(NamedTuple):
  """What the first bytes of a 'jpeg' or 'png' declare; sizes are in pixels."""
  kind: str
  height: int
  width: int
  channels: int


def read_image_header(content: bytes) -> ImageHeader:
  """Returns the header of a JPEG or PNG.

  Raises:
    ValueError: it is neither, or ends within the header.
  """
  if content[:8] == b'\x89PNG\r\n\x1a\n':
    if len(content) < 33 or content[12:16] != b'IHDR':
      raise ValueError('a PNG without its header')
    width, height, _, colour = struct.unpack_from('>IIBB', content, 16)
    return ImageHeader('png', height, width, {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}.get(colour, 3))
  if content[:2] == b'\xff\xd8':
    return _read_jpeg_header(content)
  for start, name in _OTHERS:
    if content.startswith(start):
      raise ValueError(f'{name}, neither JPEG nor PNG')
  magic = ' '.join(f'{byte:02x}' for byte in content[:4])
  found = f'starts with the bytes {magic}' if magic else 'is empty'
  raise ValueError(f'neither JPEG nor PNG: it {found}')


def check_is_whole(content: bytes) -> None:
  """Raises a ValueError if an image lacks its end, as after a download that was cut off."""
  if content[:2] == b'\xff\xd8' and b'\xff\xd9' not in content[-64:]:
    raise ValueError('a JPEG without its end: it was cut off')
  if content[:4] == b'\x89PNG' and b'IEND' not in content[-64:]:
    raise ValueError('a PNG without its end: it was cut off')


def _read_jpeg_header(content):
  position = 2
  while position + 4 <= len(content):
    if content[position] != 0xFF:  # Stray bytes, which decoders skip.
      position = content.find(b'\xff', position)
      if position < 0:
        break
      continue
    marker = content[position + 1]
    if marker in (0x00, 0xFF):  # Padding.
      position += 1
    elif marker in _LONE_JPEG_MARKERS:
      position += 2
    elif marker in _JPEG_FRAMES:
      if position + 10 > len(content):
        break
      height, width, channels = struct.unpack_from('>HHB', content, position + 5)
      return ImageHeader('jpeg', height, width, channels)
    else:
      [size] = struct.unpack_from('>H', content, position + 2)
      position += 2 + max(size, 2)
  raise ValueError('a JPEG that ends within its header')
