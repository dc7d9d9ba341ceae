"""The one exception for what a user can get wrong.

A message names the setting, the numbers on both sides and the fix, since it is all that the user
sees: `main.py` prints it to stderr without a stack trace and exits with code 2. Anything else that
is raised is a fault of ours.
"""


class UsageError(ValueError):
  """A flag, file, shape or environment that cannot work; raised before anything expensive starts.
  """


def check_same_number(first: int, of_first: str, second: int, of_second: str, *, fix: str) -> None:
  """Refuses two numbers that meet and differ: `zip` would take the smaller one without a word.

  Args:
    first: a number of things.
    of_first: what these are, for the message.
    second: the number that must be the same.
    of_second: what these are.
    fix: what to do about it, a sentence.

  Raises:
    UsageError: names both numbers and the fix.
  """
  if first != second:
    raise UsageError(f'{first} {of_first}, but {second} {of_second}: {fix}')
