"""Small files, written whole or not at all."""

import errno
import os

from towers.base.aside import file_aside
from towers.base.regular_file import name_other_kind


def write_whole(path: str, content: bytes) -> None:
  """Writes a temporary file in the same folder and renames it; replaces a link, not its target.

  Raises:
    OSError: and leaves an existing file as it was. Devices, FIFOs and folders are not replaced.
  """
  kind = name_other_kind(path)
  if kind:
    raise OSError(errno.EINVAL, f'it is {kind}, not a file', path)
  with file_aside(os.path.dirname(os.path.abspath(path))) as (temporary, file):
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
    # Until now only the owner can read it.
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
