"""Small files that are there whole or not at all, whatever happens while they are written."""

import os
import tempfile


def write_whole(path: str, content: bytes) -> None:
  """Writes a file under another name in the same folder, then renames it; a link of that name is
  not followed.

  Raises:
    OSError: what was there before stays as it was.
  """
  folder = os.path.dirname(os.path.abspath(path))
  handle, temporary = tempfile.mkstemp(prefix='.writing-', dir=folder)
  try:
    with os.fdopen(handle, 'wb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    # mkstemp lets only the owner read.
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
  except BaseException:
    os.remove(temporary)
    raise
