"""Small files, written whole or not at all."""

import os
import tempfile


def write_whole(path: str, content: bytes) -> None:
  """Writes a temporary file in the same folder and renames it; replaces a link, not its target.

  Raises:
    OSError: and leaves an existing file as it was.
  """
  folder = os.path.dirname(os.path.abspath(path))
  handle, temporary = tempfile.mkstemp(prefix='.writing-', dir=folder)
  try:
    with os.fdopen(handle, 'wb') as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    # By mkstemp only the owner can read it.
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
  except BaseException:
    os.remove(temporary)
    raise
