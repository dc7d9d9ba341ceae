"""The user's cache: what is made anew where it is missing."""

import os


def find_in_cache(*names: str) -> str:
  """Returns the path of a file below `towers` in the user's cache, `XDG_CACHE_HOME` or `~/.cache`;
  makes nothing.
  """
  cache = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
  return os.path.join(cache, 'towers', *names)
