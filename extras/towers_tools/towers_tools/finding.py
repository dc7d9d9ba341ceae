"""Finding: a fact about this machine, and the fix if it is a fault."""

from typing import NamedTuple


class Finding(NamedTuple):
  """A fact about this machine."""
  kind: str  # 'ok', 'note' (worth knowing) or 'FAULT'.
  text: str  # The fact.
  fix: str = ''  # What to do, or ''.


def format_finding(finding: Finding) -> str:
  """Returns a finding in one line, and its fix in another."""
  fix = f'\n       fix: {finding.fix}' if finding.fix else ''
  return f'{finding.kind:6} {finding.text}{fix}'
