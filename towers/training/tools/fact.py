"""Finding: what was looked at, what is there, and what to do about it."""

from typing import NamedTuple


class Finding(NamedTuple):
  """What was looked at.

  Attributes:
    kind: 'ok', 'note' (worth knowing) or 'FAULT'.
    text: what is there.
    fix: what to do, or ''.
  """
  kind: str
  text: str
  fix: str = ''


def format_finding(finding: Finding) -> str:
  """Returns a finding in one line, and its fix in another."""
  fix = f'\n       fix: {finding.fix}' if finding.fix else ''
  return f'{finding.kind:6} {finding.text}{fix}'
