"""The one exception for what a user can get wrong.

A message names the setting, the numbers on both sides and the fix, since it is all that the user sees: `main.py`
prints it to stderr without a stack trace and exits with code 2. Anything else that is raised is a fault of ours.
"""


class UsageError(ValueError):
  """A flag, file, shape or environment that cannot work; raised before anything expensive starts."""
