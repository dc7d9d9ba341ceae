"""The user's cache: files that can always be made again."""

import os


def find_in_cache(*names: str) -> str:
  """Returns the path of a file below `towers` in `XDG_CACHE_HOME` or `~/.cache`; makes no folder.
  """
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
  return os.path.join(cache, 'towers', *names)
